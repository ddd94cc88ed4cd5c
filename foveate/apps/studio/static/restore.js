// When the page is opened by a link with a view, ask the server to restore it.
const [name, view] = location.hash.slice(1).split(/\?(.*)/s);
if (view && name === '__PAGE__') setTimeout(() => trigger('apply', { link: view }));
