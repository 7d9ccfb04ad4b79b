// Elements of the page, and figures as text.

// Make an element with properties and children: made("a", { href: "docs" }, "documents").
export function made(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// A figure as text, always about as long: "–" where there is none.
export function number(value, digits = 1) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(digits);
}

// Write figures with their names into a list of the class "figures": [["fps", "24.9"], ...]. A third text is a class of style.css,
// as the colour of a line of a chart.
export function showFigures(list, pairs) {
  while (list.children.length > pairs.length) list.lastChild.remove();
  pairs.forEach(([name, text, className = ""], index) => {
    const pair = list.children[index] ?? list.appendChild(made("div", {}, made("dt"), made("dd")));
    pair.firstChild.textContent = name;
    pair.lastChild.textContent = text;
    pair.className = className;
  });
}
