// Buttons with data-pick. One listener on the component itself, because its content may be replaced.
element.addEventListener('click', event => {
  const picked = event.target.closest('[data-pick]');
  if (picked) trigger('select', { pick: picked.dataset.pick });
});
// Arrow keys move along the buttons and pick.
element.addEventListener('keydown', event => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], now = event.target.closest('[data-pick]');
  if (!step || !now) return;
  const all = [...element.querySelectorAll('[data-pick]')], next = all[all.indexOf(now) + step];
  if (next) { event.preventDefault(); next.focus(); trigger('select', { pick: next.dataset.pick }); }
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
watch('value', refocus);
