// A field for many images: files or folders, each reduced in the browser; the value is what went wrong, or empty.
const MOST = __MOST__, LONGEST = __LONGEST__;
const reduce = async file => {
  const image = await createImageBitmap(file), scale = Math.min(1, LONGEST / Math.max(image.width, image.height));
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.width, image.height].map(side => Math.max(1, Math.round(scale * side)));
  const context = canvas.getContext('2d');
  context.fillStyle = '#fff';
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL('image/jpeg', 0.85);
};
const say = sentence => { element.querySelector('.fv-folder span').textContent = sentence; };
const send = async files => {
  const images = [];
  for (const file of files) {
    if (images.length === MOST) break;
    say(`Reading image ${images.length + 1} …`);
    try { images.push(await reduce(file)); } catch { /* not an image */ }
  }
  const left = files.length - images.length;
  say(`${images.length} images of yours` + (left ? `, ${left} left out` : '') + ': drop others or choose files');
  trigger('upload', { images: JSON.stringify(images) });
};
const walk = async entry => {
  if (entry.isFile) return [await new Promise((done, failed) => entry.file(done, failed))];
  const reader = entry.createReader(), found = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length || found.length > 4 * MOST) return found;
    for (const one of some) found.push(...await walk(one));
  }
};
element.addEventListener('change', event => {
  event.stopPropagation();
  if (event.target.type === 'file' && event.target.files.length) { send([...event.target.files]); }
});
element.addEventListener('dragover', event => event.preventDefault());
element.addEventListener('drop', async event => {
  event.preventDefault();
  const entries = [...event.dataTransfer.items].map(item => item.webkitGetAsEntry()).filter(Boolean);
  const files = [];
  for (const entry of entries) files.push(...await walk(entry));
  send(files);
});
const show = () => {
  const sentence = element.querySelector('.fv-error');
  sentence.textContent = props.value || '';
  sentence.hidden = !props.value;
};
watch('value', show);
show();
