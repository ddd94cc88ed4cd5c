// Shared by cards.js and knobs.js: the value as JSON, and sliders with data-knob that show their values.
const read = () => { try { return JSON.parse(props.value) || {}; } catch { return {}; } };
const showSliders = values => element.querySelectorAll('input[data-knob]').forEach(slider => {
  const value = values[slider.dataset.knob];
  if (value !== undefined && document.activeElement !== slider) slider.value = value;
  slider.parentElement.querySelector('output').textContent = value ?? slider.value;
});
const showOnChange = show => {
  element.addEventListener('change', event => event.stopPropagation());
  watch('value', show);
  show();
};
