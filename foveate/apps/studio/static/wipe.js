// The slider between two maps that lie over each other.
const wipe = value => {
  const cut = element.querySelector('.fv-cut');
  if (!cut) return;
  cut.style.clipPath = `inset(0 0 0 ${value}%)`;
  element.querySelector('.fv-divider').style.left = `${value}%`;
};
element.addEventListener('input', event => {
  event.stopPropagation();
  if (event.target.classList.contains('fv-wipe')) wipe(event.target.value);
});
element.addEventListener('change', event => event.stopPropagation());
watch('value', () => wipe(50));
wipe(50);
