// Once this part of the page is first seen, ask for its content; a link that restores a view brings its own.
const [name, view] = location.hash.slice(1).split(/\?(.*)/s);
const seen = new IntersectionObserver(entries => {
  if (entries.some(entry => entry.isIntersecting)) { seen.disconnect(); trigger('apply', {}); }
});
if (!view || name !== '__PAGE__') seen.observe(element.parentElement || element);
