// Sliders with data-knob; the value is their values as JSON.
const read = () => { try { return JSON.parse(props.value) || {}; } catch { return {}; } };
const show = () => {
  const values = read();
  element.querySelectorAll('input[data-knob]').forEach(slider => {
    const value = values[slider.dataset.knob];
    if (value !== undefined && document.activeElement !== slider) slider.value = value;
    slider.parentElement.querySelector('output').textContent = value ?? slider.value;
  });
};
element.addEventListener('input', event => {
  event.stopPropagation();
  if (!event.target.dataset.knob) return;
  props.value = JSON.stringify({ ...read(), [event.target.dataset.knob]: Number(event.target.value) });
  show();
  trigger('change');
});
element.addEventListener('change', event => event.stopPropagation());
watch('value', show);
show();
