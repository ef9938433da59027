// A page that has its samples in it.

new Page(new Profile(JSON.parse(document.getElementById("data").textContent)));
// After the first picture, which waits for the same moment.
requestAnimationFrame(() => performance.mark("shown"));
