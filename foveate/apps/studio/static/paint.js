// A painter of scores on a grid; its value is the list of scores as JSON. Works with mouse, pen, touch and keys.
const SIDE = __SIDE__;
const read = () => { try { return JSON.parse(props.value); } catch { return new Array(SIDE * SIDE).fill(0); } };
let scores = read(), painting = false, lower = false, at = [SIDE / 2, SIDE / 2], keys = false;
const canvas = () => element.querySelector('canvas');
const draw = () => {
  const context = canvas().getContext('2d'), cell = canvas().width / SIDE;
  const high = Math.max(3, ...scores.map(Math.abs));
  scores.forEach((score, n) => {
    const share = score / high, light = 97 - 62 * Math.abs(share), hue = share < 0 ? 205 : 25;
    context.fillStyle = `hsl(${hue} ${score ? 75 : 0}% ${light}%)`;
    context.fillRect((n % SIDE) * cell, Math.floor(n / SIDE) * cell, cell, cell);
  });
  if (keys) {
    context.strokeStyle = '#0b62a8';
    context.lineWidth = 3;
    context.strokeRect((Math.round(at[0])) * cell, (Math.round(at[1])) * cell, cell, cell);
  }
};
const brush = (x, y, down) => {
  scores = scores.map((score, n) => {
    const far = ((n % SIDE) - x) ** 2 + (Math.floor(n / SIDE) - y) ** 2;
    const added = far < 9 ? (down ? -1 : 1) * 0.7 * Math.exp(-far / 2) : 0;
    return Math.round(100 * Math.min(9, Math.max(-9, score + added))) / 100;
  });
  draw();
};
const paint = event => {
  const box = canvas().getBoundingClientRect();
  brush((event.clientX - box.left) / box.width * SIDE - 0.5, (event.clientY - box.top) / box.height * SIDE - 0.5,
    lower || event.shiftKey || event.buttons === 2);
};
const publish = () => { props.value = JSON.stringify(scores); trigger('change'); };
const done = () => { if (painting) { painting = false; publish(); } };
element.addEventListener('pointerdown', event => {
  if (event.target !== canvas()) return;
  painting = true;
  keys = false;
  canvas().setPointerCapture?.(event.pointerId);
  paint(event);
});
element.addEventListener('pointermove', event => { if (painting && event.target === canvas()) paint(event); });
element.addEventListener('pointerup', done);
element.addEventListener('pointercancel', done);
element.addEventListener('contextmenu', event => event.preventDefault());
element.addEventListener('keydown', event => {
  if (event.target !== canvas()) return;
  const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
  if (!step && event.key !== ' ' && event.key !== 'Enter') return;
  event.preventDefault();
  keys = true;
  if (step) at = at.map((place, axis) => Math.min(SIDE - 1, Math.max(0, Math.round(place) + step[axis])));
  if (step) draw(); else { brush(at[0], at[1], lower || event.shiftKey); publish(); }
});
element.addEventListener('click', event => {
  const mode = event.target.closest('[data-mode]')?.dataset.mode;
  if (!mode) return;
  if (mode === 'clear') { scores = scores.map(() => 0); draw(); publish(); return; }
  lower = mode === 'lower';
  element.querySelectorAll('[data-mode]').forEach(button =>
    button.setAttribute('aria-pressed', String(button.dataset.mode === mode)));
});
watch('value', () => { scores = read(); draw(); });
draw();
