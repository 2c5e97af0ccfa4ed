// Draws the events of the stream, and sends what the person chooses. The server plays the task: this script computes only
// positions and colours.
(() => {
  "use strict";
  const root = document.documentElement;
  window.onerror = (message) => { root.dataset.error = String(message); };
  const $ = (id) => document.getElementById(id);
  const STOPS = { k: [0, 1, 2, 5, 10, 20, 50, 100, 200], m: [1, 2, 5, 10, 20, 50, 100] };
  const stops = { ...STOPS }; // the values of the sliders; the policy's own value is added when it is known
  const TRAIL = 40, LENS = 58; // how many earlier points of z* stay visible, and the lens' radius
  const MEANING = {
    best: "When the episode begins or you switch, the best dot becomes z* and <b>stays z*</b>: nothing adapts after that.",
    grad: "When the episode begins or you switch, the policy climbs from the best dot and <b>keeps</b> the z* that it finds.",
    "best-ada": "The dot that is best at the present state becomes z*: <b>the policy adapts</b>, but only among the dots.",
    "grad-ada": "At the present state the policy climbs from the best dots: <b>full test-time adaptation</b>.",
  };
  const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const colour = (share) => {
    const place = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
    const left = Math.min(Math.floor(place), VIRIDIS.length - 2);
    return `rgb(${VIRIDIS[left].map((c, i) => Math.round(c + (VIRIDIS[left + 1][i] - c) * (place - left))).join(" ")})`;
  };
  const show = (v) => (v === null || v === undefined ? "–" : Number(v.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 }).replace("-", "−"));
  const svg = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const subscript = (n) => String(n).replace(/\d/g, (d) => "₀₁₂₃₄₅₆₇₈₉"[d]);
  const short = (task) => task.replace(/^droprl\//, "").replace(/-v\d+$/, "");

  let name = null, about = null, task = "", paused = false;
  let place = null, lens = null; // a function from the plane's units to the drawing's; the centre of the lens
  let reach = 0; // the length of the longest climb so far, in the drawing: it just fits into the lens
  let trail = [], trace = [], episode = -1, marks = [], mixed = false, inUse = null;
  const tally = new Map();

  // ---- what is sent

  async function send(change) {
    if (name === null) return;
    const asked = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(change) };
    const answer = await fetch(`live/${name}`, asked).catch(() => null); // if the connection is lost, the stream says so
    if (answer && !answer.ok) trouble((await answer.json()).error);
  }

  function trouble(text) {
    $("trouble").textContent = text;
    $("trouble").hidden = !text;
  }

  const chosenRule = () => document.querySelector("input[name=rule]:checked")?.value;

  function explain() {
    const rule = chosenRule();
    $("meaning").innerHTML = rule ? MEANING[rule] : "";
    for (const [id, used] of [["k", rule?.startsWith("grad")], ["m", rule?.endsWith("-ada")]]) {
      $(id).disabled = !used;
      $(`knob-${id}`).classList.toggle("off", !used);
    }
    for (const id of ["k", "m"]) $(`${id}-out`).textContent = stops[id][$(id).value];
  }

  document.querySelectorAll("input[name=rule]").forEach((input) =>
    input.addEventListener("change", () => { explain(); send({ rule: input.value }); }));
  for (const [id, key] of [["k", "ascent_steps"], ["m", "reinference_interval"]]) {
    $(id).addEventListener("input", () => explain());
    $(id).addEventListener("change", () => send({ [key]: stops[id][$(id).value] }));
  }
  function turn(id, own) {
    stops[id] = [...new Set([...STOPS[id], own])].sort((a, b) => a - b);
    $(id).max = stops[id].length - 1;
    $(id).value = stops[id].indexOf(own);
  }
  function pause(wanted) {
    paused = wanted;
    $("pause").textContent = paused ? "Go on" : "Pause";
  }
  $("pause").addEventListener("click", () => { pause(!paused); send({ paused }); });
  $("task").addEventListener("change", () => { pause(false); send({ task: $("task").value, paused }); });
  $("restart").addEventListener("click", () => { pause(false); send({ restart: true, paused }); });

  // ---- what is drawn

  function scale(points) {
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const unit = Math.max((right - left || 1) / 390, (high - low || 1) / 250);
    return (p) => [240 + (p[0] - (left + right) / 2) / unit, 169 - (p[1] - (low + high) / 2) / unit];
  }

  const far = ([ax, ay], [bx, by]) => Math.hypot(ax - bx, ay - by);

  // The names of the dots. A name is left out if it would touch a dot, another name or the lens.
  function labels(places) {
    const taken = places.map(([x, y]) => [x, y]), nodes = [];
    places.forEach(([x, y], n) => {
      const spots = [[18, 4], [-18, 4], [0, 21], [0, -13], [15, 15], [-15, 15], [15, -8], [-15, -8]].map(([dx, dy]) => [x + dx, y + dy - 4]);
      const room = spots.find((spot) => taken.every((other, k) => k === n || far(spot, other) > 17) && far(spot, lens) > LENS + 12);
      if (!room) return;
      taken.push(room);
      nodes.push(svg("text", { x: room[0], y: room[1] + 4, "text-anchor": "middle" }, `z${subscript(n)}`));
    });
    return nodes;
  }

  // Put the lens into the corner that is farthest from all dots.
  function hang(places) {
    const corners = [[68, 66], [412, 66], [68, 246], [412, 246]];
    const room = (corner) => Math.min(...places.map((p) => far(p, corner)));
    lens = corners.reduce((best, corner) => (room(corner) > room(best) ? corner : best));
    $("lens").setAttribute("transform", `translate(${lens})`);
  }

  function hello(event) {
    [name, about] = [event.name, event];
    trouble("");
    pause(false);
    root.dataset.show = name;
    $("task").replaceChildren(...event.tasks.map((id, i) => new Option(short(id) + (i === 0 ? "" : " (not the policy's own)"), id)));
    $("task").disabled = event.tasks.length === 1;
    const adapts = Boolean(event.embeddings);
    for (const id of ["rules", "knob-k", "knob-m", "plane-figure", "score-figure"]) $(id).hidden = !adapts;
    document.querySelector(".columns").classList.toggle("alone", !adapts);
    if (!adapts) {
      $("meaning").textContent = `A policy of ${event.algorithm} infers no embedding: it acts, and nothing adapts at test time.`;
      return;
    }
    turn("k", event.settings.ascent_steps);
    turn("m", event.settings.reinference_interval);
    document.querySelector(`input[value="${event.settings.rule}"]`).checked = true;
    explain();
    place = scale(event.embeddings);
    const places = event.embeddings.map(place), few = places.length <= 30;
    hang(places);
    $("dots").replaceChildren(
      ...places.map(([cx, cy]) => svg("circle", { cx, cy, r: places.length <= 60 ? 6 : 4 })), ...(few ? labels(places) : []));
    $("plane-caption").textContent =
      `A dot is one of ${places.length} sub-tasks of ${event.dataset}, seen along the two directions in which they differ most ` +
      `(${Math.round(100 * event.explained)} % of the variance).` + (event.in_full ? "" : " Climbs are shown in full. The policy itself cuts them short or starts them elsewhere.");
  }

  function plane(event) {
    const [low, high] = [Math.min(...event.scores), Math.max(...event.scores)];
    const dots = $("dots").querySelectorAll("circle");
    event.scores.forEach((s, n) => dots[n].setAttribute("fill", colour(high > low ? (s - low) / (high - low) : 1)));
    const ranked = event.scores.map((s, n) => n).sort((a, b) => event.scores[b] - event.scores[a]);
    const counted = new Set(event.settings.rule === "grad-ada" ? ranked.slice(0, about.starts) : [event.start]);
    const climbs = event.settings.rule.startsWith("grad");
    const once = !event.settings.rule.endsWith("-ada");
    $("climbs").replaceChildren(...(climbs ? event.ends : []).map((end, n) => {
      const [a, b] = [place(about.embeddings[n]), place(n === event.start ? event.z : end)];
      const kind = n === event.start ? "chosen" : counted.has(n) && !once ? "counts" : "idle";
      return svg("path", { d: `M${a}L${b}`, class: kind });
    }));
    const [x, y] = place(event.z), [sx, sy] = place(about.embeddings[event.start]);
    $("ring").setAttribute("d", `M${sx - 10} ${sy}a10 10 0 1 0 20 0a10 10 0 1 0 -20 0Z`);
    $("star").setAttribute("cx", x);
    $("star").setAttribute("cy", y);
    $("star-name").setAttribute("x", x - 5);
    $("star-name").setAttribute("y", y - 12);
    trail.push([x, y]);
    trail = trail.slice(-TRAIL);
    $("visited").replaceChildren(...trail.slice(0, -1).map(([cx, cy], i) =>
      svg("circle", { cx, cy, r: 3, "fill-opacity": (0.35 * (i + 1)) / TRAIL })));
    root.dataset.z = `${x.toFixed(1)} ${y.toFixed(1)}`;
    magnify([sx, sy], [x, y], climbs);
  }

  // Draw the surroundings of the dot that z* climbed from, larger.
  function magnify(centre, z, climbs) {
    $("lens").toggleAttribute("hidden", !climbs);
    reach = Math.max(reach, far(centre, z), 1);
    const power = (0.72 * LENS) / reach;
    const near = ([px, py]) => [power * (px - centre[0]), power * (py - centre[1])];
    const spot = (p, attributes) => { const [cx, cy] = near(p); return svg("circle", { cx, cy, ...attributes }); };
    const dots = [...$("dots").querySelectorAll("circle")].map((dot) =>
      spot([dot.getAttribute("cx"), dot.getAttribute("cy")], { r: 8, fill: dot.getAttribute("fill") }));
    $("near").replaceChildren(
      ...trail.slice(0, -1).map((p, i) => spot(p, { r: 4, class: "visited", "fill-opacity": (0.3 * (i + 1)) / TRAIL })),
      ...dots, svg("path", { d: `M0 0L${near(z)}`, class: "chosen" }), spot(z, { r: 9, class: "star" }));
    $("power").textContent = `${Number(power.toPrecision(2))}× around z*`;
  }

  function scores() {
    const values = trace.flatMap((p) => [p[1], p[2]]).filter((v) => v !== null);
    if (!values.length) return;
    const levels = ticks(Math.min(...values), Math.max(...values));
    const [low, high] = [levels[0], levels.at(-1)];
    const last = 100 * Math.ceil(trace.at(-1)[0] / 100);
    const wide = Math.max(300, $("scores").clientWidth), right = wide - 8;
    $("scores").setAttribute("viewBox", `0 0 ${wide} 170`);
    const x = (step) => 48 + ((right - 48) * step) / last, y = (v) => 142 - (132 * (v - low)) / (high - low);
    const line = (i) => "M" + trace.map((p) => `${x(p[0]).toFixed(1)} ${y(p[i]).toFixed(1)}`).join("L");
    $("trace").setAttribute("d", line(1));
    $("reference").setAttribute("d", line(2));
    const axes = [];
    for (const v of levels) {
      axes.push(svg("path", { d: `M48 ${y(v)}H${right}` }), svg("text", { x: 42, y: y(v) + 4, "text-anchor": "end" }, show(v)));
    }
    for (let i = 0; i <= 4; i++) {
      const label = i === 4 ? `step ${last}` : String((last * i) / 4);
      axes.push(svg("text", { x: x((last * i) / 4), y: 162, "text-anchor": i < 4 ? "middle" : "end" }, label));
    }
    $("axes").replaceChildren(...axes);
    $("switches").replaceChildren(...marks.flatMap(([step, label], i) => [
      svg("path", { d: `M${x(step)} 10V142` }),
      svg("text", x(step) < right - 140 ? { x: x(step) + 4, y: 20 + 15 * (i % 4) } : { x: x(step) - 4, y: 20 + 15 * (i % 4), "text-anchor": "end" }, label)]));
  }

  // Three to six round numbers that reach from low to high.
  function ticks(low, high) {
    const span = Math.max(high - low, 1e-3, Math.abs(high) * 1e-3), ten = 10 ** Math.floor(Math.log10(span / 3));
    const gap = [1, 2, 5, 10].map((f) => f * ten).find((g) => span / g <= 4);
    const first = Math.floor(low / gap), count = Math.max(Math.ceil(high / gap) - first, 1);
    return Array.from({ length: count + 1 }, (_, i) => (first + i) * gap);
  }

  const named = (s) => s === undefined ? null : s.rule + (s.rule.startsWith("grad") ? `, K = ${s.ascent_steps}` : "") + (s.rule.endsWith("-ada") && s.reinference_interval > 1 ? `, m = ${s.reinference_interval}` : "");

  function frame(event) {
    const label = named(event.settings);
    if (event.episode !== episode) {
      [episode, trace, marks, trail, mixed] = [event.episode, [], [], [], false];
    } else if (label !== inUse) {
      mixed = true;
      marks.push([event.points[0][0], label]);
    }
    inUse = label;
    trace.push(...event.points);
    if (event.image) $("frame").src = event.image;
    const [step, score, best, total] = trace.at(-1);
    $("progress").textContent = `Episode ${event.episode + 1}, step ${step}: reward so far ${show(total)}` + (score === null ? "." : `, score of z* ${show(score)}, of the best dot ${show(best)}.`);
    if (event.scores) {
      plane(event);
      scores();
    }
    root.dataset.step = step;
    root.dataset.rule = label ?? "";
  }

  function finished(event) {
    if (mixed) return;
    const key = `${inUse ?? about.algorithm}|${short(task)}`;
    const list = tally.get(key) ?? tally.set(key, []).get(key);
    list.push(event);
    $("tally").replaceChildren(...[...tally].map(([k, runs]) => {
      const row = document.createElement("tr");
      const worth = (r) => (r.score === null ? show(r.total) : `${show(r.total)} (score ${show(r.score)})`);
      const mean = runs.reduce((sum, r) => sum + r.total, 0) / runs.length;
      for (const text of [...k.split("|"), runs.length, show(mean), worth(runs.at(-1))]) {
        row.append(Object.assign(document.createElement("td"), { textContent: text }));
      }
      return row;
    }));
  }

  function newTask(event) {
    task = event.task;
    $("task").value = task;
    $("task-name").textContent = `The policy acts: ${short(task)}`;
    $("frame").removeAttribute("src");
    $("no-frame").textContent = event.no_frames ?? "compiling …";
    $("cast").hidden = Boolean(event.no_frames) || !task.includes("maze2d");
    root.dataset.frames = event.no_frames ? "none" : "some";
    [episode, trace, trail] = [-1, [], []];
  }

  // The show is over. A new show would end in the same way and hide the reason.
  function over(event) {
    stream.close();
    name = null;
    trouble(`${event.error} (Load the page again to try once more.)`);
  }

  const handlers = { hello, task: newTask, frame, episode: finished, trouble: over };
  const stream = new EventSource("live/stream");
  stream.onmessage = (message) => { const event = JSON.parse(message.data); handlers[event.kind](event); };
  stream.onerror = async () => {
    name = null;
    if (stream.readyState !== EventSource.CLOSED) return trouble("The connection is lost; trying again …");
    const stop = new AbortController();
    const answer = await fetch("live/stream", { signal: stop.signal }).catch(() => null);
    if (answer === null) return trouble("The service does not answer: load the page again when it runs.");
    trouble(answer.ok ? "The stream has ended: load the page again." : (await answer.json()).error);
    if (answer.ok) stop.abort();
  };
})();
