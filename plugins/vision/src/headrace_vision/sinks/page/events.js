// The list of what happened: pages of it, the newest first, chosen by source, class, zone and time, and what is kept of each event.

import { made } from "./elements.js";
import { read } from "./server.js";

const EVERY_MS = 5000, SOON_MS = 250; // between two looks, and while files are still read
const form = document.getElementById("chosen"), list = document.getElementById("happened"), older = document.getElementById("older");
const dialog = document.getElementById("event"), note = document.getElementById("happened-note");
const names = { source: "all sources", label: "all classes", zone: "all lines and zones" };
const selects = Object.keys(names).map((name) => form.appendChild(made("select", { name, ariaLabel: name })));
let next = null, question = 0, isWhole = false, soon;

for (const [name, text] of [["since", "from"], ["until", "to"]]) {
  form.append(made("label", {}, `${text} `, made("input", { name, type: "datetime-local", step: 1 })));
}

// Begin to show the list, where there is one.
export function start() {
  if (!list.closest("section").hidden) return;
  list.closest("section").hidden = false;
  for (const select of selects) choices(select, []);
  form.addEventListener("change", () => load());
  form.addEventListener("submit", (event) => event.preventDefault());
  older.addEventListener("click", () => load(next));
  list.closest("section").addEventListener("keydown", move);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.replaceChildren()); // a clip ends with it
  load();
  setInterval(() => document.hidden || load(undefined, true), EVERY_MS);
}

// Read a page: the first one, or the one behind it. What is new since comes above what is shown.
async function load(before, isNew = false) {
  const mine = isNew ? question : ++question, asked = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (value) asked.set(name, ["since", "until"].includes(name) ? new Date(value) / 1000 : value.slice(1));
  }
  if (before) asked.set("before", before);
  let found;
  try {
    found = await read(`ui/events.json?${asked}`);
  } catch (error) {
    note.textContent = error.message;
    return;
  }
  if (mine !== question) return; // another one was asked since
  for (const select of selects) choices(select, found.choices[select.name]);
  const all = [...list.children], shown = new Map(all.map((item) => [item.dataset.id, item]));
  const items = found.events.map((one) => known(shown.get(`${one.id}`), one) ?? row(one));
  // Pages that were added stay below the first one, unless that is far above them, or events come in any order.
  const end = isNew && isWhole ? all.findLastIndex((item) => found.events.some((one) => item.dataset.id === `${one.id}`)) : -1;
  const rest = end < 0 ? [] : all.slice(end + 1);
  put(before ? [...all, ...items] : [...items, ...rest]);
  if (before) items[0]?.firstChild.focus();
  if (!rest.length) next = found.next;
  isWhole = found.is_whole;
  older.hidden = !next;
  clearTimeout(soon);
  if (!found.is_whole) soon = setTimeout(() => load(undefined, true), SOON_MS);
  note.textContent = !found.is_whole ? "files are still read" : list.children.length ? "" : "no events";
}

// Let a field offer what there is, and keep what was chosen. A value has a letter in front, so that an empty name is none.
function choices(select, values) {
  const chosen = select.value, wanted = ["", ...values.map((one) => `=${one}`)];
  if (chosen && !wanted.includes(chosen)) wanted.push(chosen);
  if ([...select.options].map((one) => one.value).join("\n") === wanted.join("\n")) return;
  select.replaceChildren(...wanted.map((value) => made("option", { value, textContent: value.slice(1) || names[select.name] })));
  select.value = chosen;
}

function row(one) {
  const button = made("button", { type: "button" }, picture(one, "lazy"), made("span", {}, ...told(one)));
  button.addEventListener("click", () => open(one));
  const item = made("li", {}, button);
  item.dataset.id = one.id;
  item.dataset.told = JSON.stringify(one);
  return item;
}

// The row of an event, if nothing is new about it: it has a clip once that has ended.
function known(item, one) {
  return item?.dataset.told === JSON.stringify(one) ? item : null;
}

// Show these rows, and leave the focus on its event.
function put(items) {
  if (items.length === list.children.length && items.every((item, at) => item === list.children[at])) return;
  const id = document.activeElement.closest("#happened li")?.dataset.id;
  list.replaceChildren(...items);
  items.find((item) => item.dataset.id === id)?.firstChild.focus({ preventScroll: true });
}

function picture(one, loading) {
  if (!one.snapshot) return made("span", { className: "none", ariaHidden: true });
  return made("img", { src: `ui/snapshot?id=${one.id}`, alt: "", loading });
}

function told(one) {
  const { time, source, name, type, direction, track_id: track, class_name: kind } = one;
  const what = [name ?? type, direction].filter(Boolean).join(" ");
  const who = [kind, track == null ? "" : `#${track}`].filter(Boolean).join(" ");
  const clip = one.clip ? [made("span", { className: "badge" }, "clip")] : [];
  const when = made("time", { dateTime: new Date(time * 1000).toISOString() }, new Date(time * 1000).toLocaleString());
  return [made("strong", {}, [what, who].filter(Boolean).join(", ")), made("small", {}, `${source}, `, when, " ", ...clip)];
}

// Show what is kept of an event. A clip that no browser plays is a file to save.
function open(one) {
  const link = made("a", { href: `ui/clip?id=${one.id}`, download: "", textContent: "Save the clip" });
  link.hidden = !one.clip;
  const close = made("button", { type: "button", textContent: "Close" });
  close.addEventListener("click", () => dialog.close());
  const clip = one.clip === "plays" ? made("video", { src: link.href, controls: true, autoplay: true, muted: true }) : picture(one, "eager");
  const lacks = made("p", { className: "faint", hidden: Boolean(one.clip || one.snapshot) }, "There is no clip, and no snapshot.");
  dialog.replaceChildren(made("p", {}, ...told(one)), clip, lacks, made("p", { className: "ends" }, link, close));
  dialog.showModal();
  close.focus();
}

// The arrows, Home and End go through the list, as it lies in columns. Enter opens, and Escape closes, as everywhere.
function move(event) {
  const all = [...list.querySelectorAll("button"), ...(older.hidden ? [] : [older])], at = all.indexOf(document.activeElement);
  const across = all.findIndex((one) => one.offsetTop > all[0].offsetTop), wide = across > 0 ? across : 1;
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + wide, ArrowUp: at - wide, Home: 0, End: all.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  all[Math.max(0, Math.min(to, all.length - 1))].focus();
}
