// Buttons with data-pick. One listener on the component itself, because its content may be replaced.
const pick = button => {
  element.querySelectorAll('[data-pick]').forEach(each => each.setAttribute('aria-pressed', String(each === button)));
  trigger('select', { pick: button.dataset.pick });
};
element.addEventListener('click', event => {
  const picked = event.target.closest('[data-pick]');
  if (picked) pick(picked);
});
// Arrow keys move along the buttons and pick.
element.addEventListener('keydown', event => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], now = event.target.closest('[data-pick]');
  if (!step || !now) return;
  const all = [...element.querySelectorAll('[data-pick]')], next = all[all.indexOf(now) + step];
  if (next) { event.preventDefault(); next.focus(); pick(next); }
});
const refocus = () => {
  const held = element.dataset.held;
  if (held !== undefined) element.querySelector(`[data-pick="${held}"]`)?.focus();
};
element.addEventListener('focusin', event => {
  const picked = event.target.closest('[data-pick]');
  if (picked) element.dataset.held = picked.dataset.pick;
});
element.addEventListener('focusout', () => setTimeout(() => {
  if (document.activeElement !== document.body) delete element.dataset.held;
}));
// A row that scrolls shows what is chosen.
const reveal = () => {
  const row = element.querySelector('.fv-strip'), chosen = row?.querySelector('[aria-pressed=true]');
  if (chosen) row.scrollLeft = chosen.offsetLeft - row.offsetLeft - (row.clientWidth - chosen.clientWidth) / 2;
};
new IntersectionObserver((entries, self) => {
  if (entries.some(entry => entry.isIntersecting)) { self.disconnect(); reveal(); }
}).observe(element);
watch('value', () => { refocus(); setTimeout(reveal); });
