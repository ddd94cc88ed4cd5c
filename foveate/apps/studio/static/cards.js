// Cards of the mechanisms: which are shown, and the values of their options, as JSON in the value.
__SLIDERS__
const show = () => {
  const { names = [], knobs = {} } = read();
  element.querySelectorAll('.fv-card').forEach(card => {
    const on = names.includes(card.dataset.name);
    card.dataset.on = String(on);
    card.querySelector('input[type=checkbox]').checked = on;
  });
  showSliders(knobs);
};
element.addEventListener('input', event => {
  event.stopPropagation();
  const { names = [], knobs = {} } = read(), from = event.target;
  if (from.dataset.knob) knobs[from.dataset.knob] = Number(from.value);
  else if (from.type === 'checkbox') {
    const name = from.closest('.fv-card').dataset.name, at = names.indexOf(name);
    if (at < 0) names.push(name); else names.splice(at, 1);
  } else return;
  props.value = JSON.stringify({ names, knobs });
  show();
  trigger('change');
});
showOnChange(show);
