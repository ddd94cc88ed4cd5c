// Sliders with data-knob; the value is their values as JSON.
__SLIDERS__
const show = () => showSliders(read());
element.addEventListener('input', event => {
  event.stopPropagation();
  if (!event.target.dataset.knob) return;
  props.value = JSON.stringify({ ...read(), [event.target.dataset.knob]: Number(event.target.value) });
  show();
  trigger('change');
});
showOnChange(show);
