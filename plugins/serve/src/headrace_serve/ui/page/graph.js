// The graph of a model: a box per node with its live figures, an arrow per edge with how many requests go along it.

import { number } from "./elements.js";

const WIDTH = 240, HEIGHT = 120, GAP = 22, PAD = 8, LANE = 18;
const NARROW = window.matchMedia("(max-width: 40rem)");

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The step of each node, one behind the last of those before it. Edges of Repost may lead back, and move nothing.
function stepsOf(nodes, edges) {
  const step = Object.fromEntries(nodes.map((node) => [node.name, 0]));
  for (const _ of nodes) {
    for (const edge of edges) {
      if (edge.keys !== "Repost") step[edge.to] = Math.max(step[edge.to], step[edge.from] + 1);
    }
  }
  return step;
}

function shortened(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

// Where boxes and arrows are: steps go from left to right, or on a narrow screen from top to bottom. Edges over several steps have
// lanes below, or on the right. Returns the corner of each node, and the path and the middle of each edge.
function laidOut({ nodes, edges }, down) {
  const step = stepsOf(nodes, edges), rank = {}, filled = [];
  for (const node of nodes) {
    const at = step[node.name];
    filled[at] = (filled[at] ?? 0) + 1;
    rank[node.name] = filled[at] - 1;
  }
  const [along, aside] = down ? [HEIGHT + 44, WIDTH + GAP] : [WIDTH + 96, HEIGHT + GAP], [long, wide] = down ? [HEIGHT, WIDTH] : [WIDTH, HEIGHT];
  // In the direction of the steps, and across it.
  const point = (a, b) => (down ? `${b} ${a}` : `${a} ${b}`);
  const start = (name) => PAD + step[name] * along, side = (name) => PAD + rank[name] * aside;
  const beyond = PAD + Math.max(...filled) * aside;
  let lanes = 0;
  const paths = edges.map((edge) => {
    const a1 = start(edge.from) + long, b1 = side(edge.from) + wide / 2, a2 = start(edge.to), b2 = side(edge.to) + wide / 2;
    const middle = (a1 + a2) / 2;
    if (step[edge.to] - step[edge.from] === 1) {
      const half = (b1 + b2) / 2;
      const path = `M${point(a1, b1)} C${point(middle, b1)} ${point(middle, b2)} ${point(a2, b2)}`;
      return { path, far: false, x: down ? half : middle, y: down ? middle : half };
    }
    const lane = beyond + LANE * lanes++ + 6, bend = down ? 14 : 50, reach = down ? 30 : 60;
    const path = `M${point(a1, b1)} C${point(a1 + bend, b1)} ${point(a1 + reach / 3, lane)} ${point(a1 + reach, lane)}`
      + ` L${point(a2 - reach, lane)} C${point(a2 - reach / 3, lane)} ${point(a2 - bend, b2)} ${point(a2, b2)}`;
    return { path, far: true, x: down ? lane : middle, y: down ? middle + LANE * lanes : lane };
  });
  const length = 2 * PAD + filled.length * along - (along - long), breadth = lanes ? beyond + lanes * LANE + PAD + (down ? 12 : 0) : beyond - GAP + PAD;
  const at = Object.fromEntries(nodes.map(({ name }) => [name, down ? [side(name), start(name)] : [start(name), side(name)]]));
  return { at, paths, width: down ? breadth : length, height: down ? length : breadth };
}

// Draw the graph into an element; returns a function that writes new figures into it, and marks the node that is the limit.
export function drawGraph(parent, model) {
  let latest = null, update = drawn(parent, model, NARROW.matches);
  NARROW.addEventListener("change", () => {
    update = drawn(parent, model, NARROW.matches);
    if (latest) update(...latest);
  });
  return (...figures) => update(...(latest = figures));
}

function drawn(parent, model, down) {
  const { at, paths, width, height } = laidOut(model, down);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width });
  svg.style.minWidth = `${0.75 * width}px`; // smaller it could not be read: it is scrolled
  const end = element("marker", { id: `end-${model.id}`, viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
  end.append(element("path", { d: "M0 0 L8 4 L0 8 z", class: "tip" }));
  svg.append(end);

  const lines = [], texts = [];
  const rates = model.edges.map((edge, index) => {
    const { path, far, x, y } = paths[index];
    const line = element("path", { d: path, class: "edge", "marker-end": `url(#end-${model.id})` });
    if (edge.keys === "Repost") line.setAttribute("stroke-dasharray", "4 3");
    const rate = element("text", { x, y: down ? y + 4 : y - 5, "text-anchor": "middle", class: "rate" });
    const keys = element("text", { x, y: y + 14, "text-anchor": "middle", class: "mono keys" }, far || down ? "" : shortened(edge.keys, 14));
    keys.append(element("title", {}, edge.keys));
    lines.push(line);
    texts.push(rate, keys);
    return rate;
  });
  svg.append(...lines, ...texts);

  const boxes = Object.fromEntries(model.nodes.map((node) => {
    const [x, y] = at[node.name], group = element("g", { "data-node": node.name });
    const box = element("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6, class: "box" });
    const marks = [node.each ? `each ${node.each}` : "", node.or ? "or" : "", node.device ?? "", node.alias_of ? `= ${node.alias_of}` : ""];
    const title = [node.name, ...marks.filter(Boolean)].join(" · ");
    const text = (top, kind, said, shown = said) => {
      const made = element("text", { x: x + 10, y: y + top, class: kind }, shown);
      if (said !== shown) made.append(element("title", {}, said));
      return made;
    };
    const figures = text(54, "figures-of-node"), times = text(71, "times faint"), ended = text(88, "ended faint");
    const errors = element("text", { x: x + WIDTH - 10, y: y + 88, class: "errors bad", "text-anchor": "end" });
    group.append(box, text(19, "title", title, shortened(title, 32)), text(35, "mono", node.expression, shortened(node.expression, 33)), figures, times, ended, errors);
    const bars = Array.from({ length: Math.min(node.instances, 16) }, (_, index) => {
      const wide = (WIDTH - 20) / Math.min(node.instances, 16) - 3, at = x + 10 + index * (wide + 3);
      const shape = { x: at, y: y + 98, height: 10, rx: 2 };
      const used = element("rect", { ...shape, width: 0, class: "busy" });
      used.append(element("title", {}));
      group.append(element("rect", { ...shape, width: wide, class: "full" }), used);
      return { used, wide };
    });
    svg.append(group);
    return [node.name, { box, figures, times, ended, errors, bars, node }];
  }));
  parent.replaceChildren(svg);

  return function update(figures, limit) {
    for (const [name, shown] of Object.entries(boxes)) {
      const one = figures.nodes[name];
      if (!one) continue;
      shown.figures.textContent = `${number(one.rate)}/s · ${one.waiting} waiting · batch ${number(one.batch)} of ${shown.node.most ?? "∞"}`;
      shown.times.textContent = `${number(one.forward.p50)} ms, p99 ${number(one.forward.p99)} · queued ${number(one.queue.p50)}`;
      shown.ended.textContent = [`${number(one.ok, 0)} ok`, one.cancelled ? `${number(one.cancelled, 0)} cancelled` : "", one.reasons].filter(Boolean).join(" · ");
      shown.errors.textContent = one.failed ? `${number(one.failed, 0)} failed` : "";
      shown.box.classList.toggle("failing", one.failing);
      shown.box.classList.toggle("limiting", name === limit);
      shown.bars.forEach(({ used, wide }, index) => {
        const busy = one.busy[index] ?? 0;
        used.setAttribute("width", wide * Math.min(1, busy));
        used.firstChild.textContent = `instance ${index}: busy for ${Math.round(100 * Math.min(1, busy))} % of the last seconds`;
      });
    }
    model.edges.forEach((edge, index) => {
      const rate = edgeRate(model, edge, figures.nodes);
      rates[index].textContent = rate === null ? "" : `${number(rate)}/s`;
    });
  };
}

// How many requests a second go along an edge. Where a node takes what comes from either of several (`or`), only the
// source can tell, and only if nothing else follows it.
function edgeRate(model, edge, nodes) {
  const target = model.nodes.find((node) => node.name === edge.to);
  if (edge.keys === "Repost" || !nodes[edge.from] || !nodes[edge.to]) return null;
  if (!target.or) return nodes[edge.to].rate;
  return model.edges.filter((one) => one.from === edge.from).length === 1 ? nodes[edge.from].okRate : null;
}

// How many requests failed: one that its client has given up is no failure of the node in which it was.
function failuresOf(node) {
  return Object.entries(node.failed).reduce((sum, [code, count]) => (code === "cancelled" ? sum : sum + count), 0);
}

// Why the batches between two answers of stats() were formed: the two most frequent reasons, as "full 80 %, timer 20 %".
function reasonsOf(node, old) {
  const counts = Object.entries(node.reasons).map(([reason, count]) => [reason, count - (old?.reasons[reason] ?? 0)]);
  const all = counts.reduce((sum, [, count]) => sum + count, 0), most = counts.filter(([, count]) => count).sort((a, b) => b[1] - a[1]);
  return most.slice(0, 2).map(([reason, count]) => `${shortened(reason, 8)} ${Math.round((100 * count) / all)} %`).join(", ");
}

// What has happened between two answers of stats(), per node. `running` are the batches that are not counted yet, as
// [node, instance, begin].
export function figuresOf(stats, before, seconds, running, now) {
  const begun = Object.fromEntries(running.map(([name, index, since]) => [`${name} ${index}`, since]));
  const nodes = {};
  for (const [name, node] of Object.entries(stats.nodes)) {
    const old = before?.nodes[name];
    const failed = failuresOf(node);
    let requests = 0, batches = 0;
    for (const [size, count] of Object.entries(node.batch_size.histogram)) {
      const more = count - (old?.batch_size.histogram[size] ?? 0);
      requests += more * Number(size);
      batches += more;
    }
    const per = (key) => (old ? Math.max(0, node[key] - old[key]) / seconds : 0);
    nodes[name] = {
      rate: per("submitted"),
      okRate: per("ok"),
      waiting: node.waiting,
      batch: batches > 0 ? requests / batches : node.batch_size.mean,
      forward: node.forward_ms,
      queue: node.queue_ms,
      ok: node.ok,
      cancelled: node.cancelled,
      reasons: reasonsOf(node, old),
      failed,
      failing: old !== undefined && failed > failuresOf(old),
      busy: node.instances.map((one, index) => {
        const counted = old ? Math.max(0, one.busy_s - (old.instances[index]?.busy_s ?? 0)) : 0;
        return old ? (counted + now - (begun[`${name} ${index}`] ?? now)) / seconds : 0;
      }),
    };
  }
  return { nodes };
}
