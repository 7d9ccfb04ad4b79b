// Questions to the server, with the key of the user where it asks for one.

const root = new URL("..", import.meta.url);
let key = sessionStorage.getItem("headrace key") ?? "";

export function setKey(text) {
  key = text;
  sessionStorage.setItem("headrace key", text);
}

export function hasKey() {
  return key !== "";
}

// Ask the server; `path` is relative to where the server is, as "v2/models".
export function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  return fetch(new URL(path, root), { ...options, headers, cache: "no-store" });
}

// Follow a link with the key, which a link itself could not send.
export async function follow(event) {
  if (!key) return;
  event.preventDefault();
  const answer = await ask(event.currentTarget.getAttribute("href"));
  window.open(URL.createObjectURL(await answer.blob()));
}

export function number(value, digits = 1) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(digits);
}
