// Elements of the page, and what numbers and names look like in them.

function element(tag, className, text) {
  const it = document.createElement(tag);
  if (className) it.className = className;
  if (text !== undefined) it.textContent = text;
  return it;
}

function baseName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

function grouped(number) {
  return number.toLocaleString("en-US");
}

function share(samples, total) {
  const percent = (100 * samples) / Math.max(total, 1);
  return `${percent > 0 && percent < 0.1 ? percent.toFixed(2) : percent.toFixed(1)}%`;
}

// A change as a share of what was before.
function growth({ growth }) {
  if (!Number.isFinite(growth)) return "new";
  return `${growth > 0 ? "+" : ""}${(100 * growth).toFixed(1)}%`;
}

function press(button, isPressed) {
  button.setAttribute("aria-pressed", String(isPressed));
}

function fillList(select, choices, chosen) {
  const options = choices.map(([value, text]) => {
    const option = element("option", "", text);
    option.value = value === null ? "" : String(value);
    option.selected = value === chosen;
    return option;
  });
  select.replaceChildren(...options);
  select.classList.toggle("chosen", chosen !== null);
}

// Puts the tip beside the mouse, where it is in view.
function place(tip, x, y) {
  const { offsetWidth: width, offsetHeight: height } = tip;
  const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
  const top = y + 18 + height > innerHeight ? y - 10 - height : y + 18;
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${Math.max(top, 4)}px`;
}
