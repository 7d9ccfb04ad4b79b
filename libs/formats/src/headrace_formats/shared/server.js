// Questions to the server of the page, with the key of the user where it asks for one.

import { made } from "./elements.js";

const root = new URL("..", import.meta.url);
let key = sessionStorage.getItem("headrace key") ?? "";

// Ask the server; `path` is relative to where the server is, as "v2/models".
export function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  return fetch(new URL(path, root), { ...options, headers, cache: "no-store" });
}

// Ask for JSON. It raises what the server says against it; where a key is missing, a form asks for one.
export async function read(path) {
  const answer = await ask(path);
  if (answer.ok) return answer.json();
  const said = await answer.json().catch(() => ({}));
  if (answer.status === 401 || answer.status === 403) askForKey();
  throw new Error(answer.status === 401 && !key ? "waiting for a key" : said.error ?? `the server answers ${answer.status}`);
}

function askForKey() {
  if (document.getElementById("key")) return;
  const input = made("input", { type: "password", autocomplete: "off", required: true });
  const form = made("form", { id: "key", className: "card" },
    made("label", {}, "This server asks for a key: ", input), made("button", { textContent: "Use it" }),
    made("small", { textContent: "It is kept in this tab, until it is closed." }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key = input.value;
    sessionStorage.setItem("headrace key", key);
    form.remove();
  });
  document.querySelector("main").before(form);
}

// Follow a link with the key, which a link itself could not send.
export async function follow(event) {
  if (!key) return;
  event.preventDefault();
  const answer = await ask(event.currentTarget.getAttribute("href"));
  window.open(URL.createObjectURL(await answer.blob()));
}

// Call `look` again and again, `everyMs` after it has ended, while the tab is seen: a hidden one asks nothing. What it returns is
// written into the element `note`, and what it raises, too; then the figures of the page are old, and drawn faintly.
export function watch(everyMs, note, look) {
  let looking = false;
  const once = async () => {
    try {
      note.textContent = await look();
      document.body.classList.remove("old");
      document.body.dataset.updates = Number(document.body.dataset.updates ?? 0) + 1;
    } catch (error) {
      document.body.classList.add("old");
      note.textContent = error instanceof TypeError ? "the server cannot be reached" : error.message;
    }
  };
  const loop = async () => {
    if (looking) return;
    looking = true;
    while (!document.hidden) {
      await once();
      await new Promise((done) => setTimeout(done, everyMs));
    }
    looking = false;
  };
  document.addEventListener("visibilitychange", loop);
  loop();
}
