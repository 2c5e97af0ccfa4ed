// Figures are complete without this script. It adds a cursor that shows a chart's values, and the episode player.
// Positions come from Python in drawing units. Only the y of the traces is scaled here.
(() => {
  "use strict";
  const root = document.documentElement;
  const TRAIL = 24; // steps that stay visible behind the marker
  const FRAME = 16; // ms; a timer and not a frame callback, so that it also runs if nothing is painted

  const show = (value) =>
    value === null || value === undefined
      ? "–"
      : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 }).replace("-", "−");
  const subscript = (n) => String(n).replace(/\d/g, (d) => "₀₁₂₃₄₅₆₇₈₉"[d]);
  const dataOf = (element) => JSON.parse(element.querySelector("script[type='application/json']").textContent);
  const circle = (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
  const diamond = (x, y, r) => `M${x} ${y - r}l${r} ${r}l${-r} ${r}l${-r} ${-r}Z`;
  const put = (node, path) => node && node.setAttribute("d", path);
  const unitsAt = (event, svg) => {
    const box = svg.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
  };

  // ---- a chart's cursor

  function readable(plot) {
    const data = dataOf(plot);
    const svg = plot.querySelector("svg");
    const cursor = plot.querySelector(".cursor");
    const tip = plot.querySelector(".tip");
    const [low, high, left, right] = data.x;
    const at = (x) => left + ((x - low) / (high - low)) * (right - left);
    const xs = [...new Set(data.series.flatMap((s) => s.x))].filter((x) => x !== null).sort((a, b) => a - b);
    let current = -1;

    function hide() {
      current = -1;
      tip.hidden = true;
      put(cursor, "");
    }

    function read(index) {
      current = Math.max(0, Math.min(xs.length - 1, index));
      const x = xs[current];
      if (x === undefined) return;
      put(cursor, `M${at(x)} ${data.y[0]}V${data.y[1]}`);
      const head = document.createElement("b");
      head.textContent = `${data.label} ${data.places[x] ?? show(x)}`;
      const rows = data.series.map((s) => {
        let i = s.x.indexOf(x);
        if (i < 0) {
          // Series may be measured at different x: take the nearest value if it is near enough.
          i = s.x.reduce((best, v, j) => (v !== null && (best < 0 || Math.abs(v - x) < Math.abs(s.x[best] - x)) ? j : best), -1);
          if (i < 0 || Math.abs(s.x[i] - x) > 0.02 * (high - low)) return null;
        }
        const row = document.createElement("span");
        const band = s.low && s.low[i] !== null ? ` (${show(s.low[i])} to ${show(s.high[i])})` : "";
        row.textContent = `${s.label}: ${show(s.y[i])}${band}`;
        return row;
      });
      tip.replaceChildren(head, ...rows.filter(Boolean));
      tip.hidden = false;
      const share = at(x) / data.width;
      tip.style.left = share < 0.5 ? `calc(${share * 100}% + 10px)` : "auto";
      tip.style.right = share < 0.5 ? "auto" : `calc(${(1 - share) * 100}% + 10px)`;
    }

    const nearest = (event) => {
      const where = unitsAt(event, svg);
      read(xs.reduce((best, x, i) => (Math.abs(at(x) - where) < Math.abs(at(xs[best]) - where) ? i : best), 0));
    };
    plot.addEventListener("pointermove", nearest);
    plot.addEventListener("pointerdown", nearest);
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") hide();
      if (!move) return;
      event.preventDefault();
      read(current < 0 ? (move > 0 ? 0 : xs.length - 1) : current + move);
    });
  }

  // ---- playing an episode

  function playable(figure) {
    const bar = figure.querySelector(".bar");
    const button = figure.querySelector(".play");
    const scrub = figure.querySelector(".scrub");
    const readout = figure.querySelector(".readout");
    const tabs = [...figure.querySelectorAll(".tabs input")];
    const still = window.matchMedia("(prefers-reduced-motion: reduce)");
    const walks = [...figure.querySelectorAll(".walk")].map((node) => {
      const trail = node.querySelector(".plane .trail");
      const segments = Array.from({ length: TRAIL }, (_, i) => {
        const segment = document.createElementNS(trail.namespaceURI, "path");
        segment.style.strokeOpacity = (1 - i / TRAIL) ** 1.5;
        return trail.appendChild(segment);
      });
      return { node, segments, data: dataOf(node) };
    });
    let active = 0, step = 0, playing = false, last = 0, owed = 0;

    const length = () => walks[active].data.path.length;

    function draw() {
      const { node, segments, data } = walks[active];
      const find = (selector) => node.querySelector(selector);
      const here = data.path[step];
      const from = data.start[step];
      const origin = from >= 0 ? data.z[from] : null;
      put(find(".plane .walker"), here ? diamond(here[0], here[1], 7.5) : "");
      put(find(".plane .ring"), origin ? circle(origin[0], origin[1], 9) : "");
      put(find(".plane .rise"), origin && here ? `M${origin}L${here}` : "");
      segments.forEach((segment, i) => {
        const [a, b] = [data.path[step - i - 1], data.path[step - i]];
        put(segment, a && b ? `M${a}L${b}` : "");
      });
      const x = data.time[0] + data.time[1] * step;
      const cursor = find(".traces .cursor");
      put(cursor, `M${x} ${cursor.dataset.from}V${cursor.dataset.to}`);
      const values = [data.scores[step], data.totals[step], from >= 0 ? from : null];
      node.querySelectorAll(".traces .reading").forEach((mark, i) => {
        const [low, high, start, end] = data.panels[i];
        put(mark, values[i] == null ? "" : circle(x, start + ((values[i] - low) / (high - low)) * (end - start), 4));
      });
      if (data.positions) {
        const agent = data.positions[step];
        put(find(".maze .walker"), agent ? diamond(agent[0], agent[1], 7) : "");
        put(find(".maze .done"), data.positions.slice(0, step + 1).filter(Boolean).map((p, i) => (i ? "L" : "M") + p).join(""));
      }
      const strong = document.createElement("b");
      strong.textContent = `Step ${step} of ${length() - 1}`;
      const rose = from >= 0 ? ` · from z${subscript(from)} (return ${show(data.returns[from])})` : "";
      const rest = `${rose} · f = ${show(values[0])} · reward so far ${show(values[1])}`;
      readout.replaceChildren(strong, rest);
      scrub.value = step;
      scrub.setAttribute("aria-valuetext", strong.textContent + rest);
      figure.dataset.step = step;
      figure.dataset.rule = data.rule;
    }

    function go(to) {
      step = Math.max(0, Math.min(length() - 1, Math.round(to) || 0));
      draw();
    }

    function choose(index) {
      active = Math.max(0, Math.min(walks.length - 1, index || 0));
      walks.forEach(({ node }, i) => (node.hidden = i !== active));
      tabs.forEach((tab, i) => (tab.checked = i === active));
      scrub.max = Math.max(0, length() - 1);
      go(step);
    }

    function play(on) {
      playing = on;
      button.textContent = on ? "❚❚ Pause" : "▶ Play";
      figure.dataset.playing = on;
      if (!on) return;
      if (step >= length() - 1) go(0);
      last = performance.now();
      owed = 0;
      setTimeout(tick, FRAME);
    }

    function tick() {
      if (!playing) return;
      const now = performance.now();
      // An episode takes about 15 s. For readers who want no motion it becomes about twenty still pictures.
      const rate = Math.max(8, Math.min(80, length() / 15));
      owed += ((now - last) / 1000) * rate;
      last = now;
      const jump = still.matches ? Math.max(1, Math.ceil(length() / 20)) : 1;
      if (owed >= jump) {
        go(step + Math.floor(owed));
        owed %= 1;
      }
      if (step >= length() - 1) play(false);
      else setTimeout(tick, FRAME);
    }

    function fromAddress() {
      // "#walk=1&step=40" opens the page at that step: a message or a test can link to it.
      const wish = new URLSearchParams(location.hash.slice(1));
      if (wish.has("step")) step = Number(wish.get("step"));
      if (wish.has("walk") || wish.has("step")) choose(wish.has("walk") ? Number(wish.get("walk")) : active);
      if (wish.has("play")) play(true);
    }

    const stop = () => playing && play(false);
    button.addEventListener("click", () => play(!playing));
    scrub.addEventListener("input", () => { stop(); go(Number(scrub.value)); });
    tabs.forEach((tab, i) => tab.addEventListener("change", () => choose(i)));
    walks.forEach(({ node, data }) => {
      const traces = node.querySelector(".traces");
      const seek = (event) => { stop(); go((unitsAt(event, traces) - data.time[0]) / data.time[1]); };
      traces.addEventListener("pointerdown", seek);
      traces.addEventListener("pointermove", (event) => event.buttons && seek(event));
    });
    window.addEventListener("hashchange", fromAddress);

    bar.hidden = false;
    play(false);
    choose(0);
    fromAddress();
  }

  document.querySelectorAll("[data-chart]").forEach(readable);
  document.querySelectorAll("[data-walks]").forEach(playable);
  root.dataset.ready = "true";
})();
