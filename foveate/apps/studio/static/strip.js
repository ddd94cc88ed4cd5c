// The strip of example images and the field for one's own; its value says which is chosen, and what went wrong.
const read = () => { try { return JSON.parse(props.value) || {}; } catch { return {}; } };
const mark = () => {
  const { chosen, error } = read();
  element.querySelectorAll('[data-pick]').forEach(button =>
    button.setAttribute('aria-pressed', String(button.dataset.pick === chosen)));
  element.querySelector('.fv-upload').dataset.chosen = String(chosen === 'own');
  const sentence = element.querySelector('.fv-error');
  sentence.textContent = error || '';
  sentence.hidden = !error;
};
const send = file => {
  if (!file) return;
  if (file.size > __MAX_FILE__) { trigger('upload', { address: 'too large' }); return; }
  const reader = new FileReader();
  reader.onload = () => trigger('upload', { address: reader.result });
  reader.onerror = () => trigger('upload', { address: 'unreadable' });
  reader.readAsDataURL(file);
};
element.addEventListener('click', event => {
  const picked = event.target.closest('[data-pick]');
  if (picked) trigger('select', { pick: picked.dataset.pick });
});
element.addEventListener('change', event => {
  event.stopPropagation();
  if (event.target.type === 'file') { send(event.target.files[0]); event.target.value = ''; }
});
element.addEventListener('dragover', event => event.preventDefault());
element.addEventListener('drop', event => { event.preventDefault(); send(event.dataTransfer.files[0]); });
watch('value', mark);
mark();
