// The whole page: which part is shown, links that restore a view, saving as an image, copying.
(() => {
  const pages = __PAGES__;
  const wanted = () => decodeURIComponent(location.hash.slice(1).split('?')[0]);
  const open = () => {
    const name = pages.includes(wanted()) ? wanted() : pages[0];
    document.body.dataset.page = name;
    let style = document.getElementById('fv-open');
    if (!style) { style = document.createElement('style'); style.id = 'fv-open'; document.head.append(style); }
    style.textContent = `body[data-page] #page-${name} { display: flex; }`;
    document.querySelectorAll('.fv-nav a').forEach(link =>
      link.hash === `#${name}` ? link.setAttribute('aria-current', 'page') : link.removeAttribute('aria-current'));
  };
  window.addEventListener('hashchange', () => { open(); if (!location.hash.includes('?')) scrollTo(0, 0); });
  new MutationObserver((_, self) => { if (document.querySelector('.fv-nav')) { self.disconnect(); open(); } })
    .observe(document.documentElement, { childList: true, subtree: true });
  document.addEventListener('DOMContentLoaded', open);

  const STYLE = `ellipse, path { fill: none; stroke: #10131a; vector-effect: non-scaling-stroke; } .fv-line { stroke-width: 1.2px; }
    .fv-edge { stroke-width: 2.2px; } .fv-part { stroke: #0072b2; stroke-width: 2.2px; stroke-dasharray: 6 3; }
    .fv-halo { stroke: #fff; stroke-width: 4.5px; } .fv-truth { stroke: #007a3d; stroke-width: 2.4px; }
    text { font: 600 15px system-ui, sans-serif; fill: #14181f; } .below { font: 12px system-ui, sans-serif; fill: #566070; }`;
  const escape = text => text.replace(/[&<>"]/g, c => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);
  const stackOf = figure => figure.matches('.fv-over') ? figure : figure.querySelector('.fv-stack');
  const wrap = line => (line.match(/.{1,46}(\s|$)/g) || [line]).map(part => part.trim());
  const below = figure => (figure.dataset.below ?? figure.querySelector('small')?.innerText ?? '').split('\n')
    .filter(Boolean).flatMap(wrap).slice(0, 6);
  const panel = (figure, x, y, width, height) => {
    const stack = stackOf(figure), title = figure.dataset.title ?? figure.querySelector('figcaption, .fv-title').innerText;
    const layers = [...stack.children].map(layer => layer.tagName === 'IMG'
      ? `<image href="${layer.src}" width="${width}" height="${height}" preserveAspectRatio="none"/>`
      : `<svg viewBox="0 0 100 100" width="${width}" height="${height}" preserveAspectRatio="none">${layer.innerHTML}</svg>`);
    const lines = below(figure).map((line, n) => `<text class="below" y="${height + 20 + 16 * n}">${escape(line)}</text>`);
    const size = Math.min(15, 15 * 36 / title.length);
    return `<g transform="translate(${x} ${y})"><text y="-10" style="font-size:${size}px">${escape(title)}</text>` +
      layers.join('') + lines.join('') + '</g>';
  };
  const bar = (scale, y) => {
    if (!scale) return '';
    const colours = scale.querySelector('.fv-ramp').style.background.match(/#[0-9a-f]{6}|rgb\([^)]*\)/g) || [];
    const stops = colours.map((colour, n) => `<stop offset="${n / (colours.length - 1)}" stop-color="${colour}"/>`).join('');
    const ticks = [...scale.querySelectorAll('.fv-ticks span')].map((tick, n, all) => `<text class="below" y="42" ` +
      `x="${3.2 * parseFloat(tick.style.left)}" text-anchor="${n === 0 ? 'start' : n === all.length - 1 ? 'end' : 'middle'}">` +
      `${escape(tick.innerText)}</text>`).join('');
    return `<defs><linearGradient id="ramp">${stops}</linearGradient></defs><g transform="translate(24 ${y})">` +
      `<text class="below">${escape(scale.querySelector('p').innerText)}</text>${ticks}` +
      '<rect y="10" width="320" height="14" rx="3" fill="url(#ramp)" stroke="#dfe3e9"/></g>';
  };
  const toSvg = where => {
    const figures = [...where.querySelectorAll('.fv-panel')], columns = Math.min(4, figures.length), width = 320;
    const box = stackOf(figures[0]).getBoundingClientRect(), height = width * box.height / box.width;
    const gap = 52 + 16 * Math.max(...figures.map(figure => below(figure).length));
    const rows = Math.ceil(figures.length / columns), W = Math.max(2, columns) * (width + 24) + 24;
    const scale = where.closest('.fv-page').querySelector('.fv-scale'), end = rows * (height + gap) + 24;
    const H = end + (scale ? 64 : 0);
    const inside = figures.map((figure, n) =>
      panel(figure, 24 + (n % columns) * (width + 24), 44 + Math.floor(n / columns) * (height + gap), width, height));
    return { W, H, text: `<svg xmlns="http://www.w3.org/2000/svg" width="${W}" height="${H}" viewBox="0 0 ${W} ${H}">` +
      `<style>${STYLE}</style><rect width="100%" height="100%" fill="#fff"/>${inside.join('')}${bar(scale, end)}</svg>` };
  };
  const download = (blob, name) => {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const save = { svg: where => download(new Blob([toSvg(where).text], { type: 'image/svg+xml' }), 'foveate.svg'),
    png: where => {
      const { W, H, text } = toSvg(where), image = new Image();
      image.onload = () => {
        const canvas = document.createElement('canvas');
        [canvas.width, canvas.height] = [2 * W, 2 * H];
        canvas.getContext('2d').drawImage(image, 0, 0, 2 * W, 2 * H);
        canvas.toBlob(blob => download(blob, 'foveate.png'));
      };
      image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(text);
    } };
  document.addEventListener('click', event => {
    const button = event.target.closest('[data-share]');
    if (!button) return;
    const bar = button.closest('.fv-share'), page = button.closest('.fv-page'), say = bar.querySelector('[role=status]');
    const copy = (text, sentence) => navigator.clipboard.writeText(text).then(
      () => { say.textContent = sentence; }, () => { say.textContent = text; });
    const kind = button.dataset.share, code = bar.querySelector('pre');
    if (kind === 'link') {
      const link = `${page.id.replace('page-', '')}?${bar.dataset.link}`;
      history.replaceState(null, '', `#${link}`);
      copy(location.href, bar.dataset.note || 'The link is in your clipboard; it restores this view.');
    } else if (kind === 'code') {
      code.hidden = false;
      copy(code.textContent, 'The code is in your clipboard; it runs as it is.');
    } else if (page.querySelector('.fv-saved .fv-panel')) save[kind](page.querySelector('.fv-saved'));
  });
})();
