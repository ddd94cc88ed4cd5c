// Once this part of the page is first seen, ask for its content.
const seen = new IntersectionObserver(entries => {
  if (entries.some(entry => entry.isIntersecting)) { seen.disconnect(); trigger('apply', {}); }
});
seen.observe(element.parentElement || element);
