// The OpenAPI description as a page. Nothing is fetched from other sites.
(async () => {
  "use strict";
  const made = (tag, text, ...inside) => {
    const node = document.createElement(tag);
    if (text) node.textContent = text;
    node.append(...inside);
    return node;
  };
  const api = await (await fetch("openapi.json")).json();
  const { most_rows: rows, observation_size: size } = await (await fetch("info")).json();
  document.getElementById("title").textContent = api.info.title;
  document.getElementById("description").textContent =
    `${api.info.description} An observation has ${size} numbers; a request takes up to ${rows} observations.`;
  const example = JSON.stringify({ observation: Array(size).fill(0) });
  const calls = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, call]) => {
    const section = made("section");
    section.className = "call";
    section.append(made("h2", "", made("b", method.toUpperCase()), ` ${path}`), made("p", call.description ?? call.summary));
    const body = call.requestBody?.content["application/json"].schema;
    const asks = path.endsWith("/act") ? ` -H 'content-type: application/json' -d '${example}'` : "";
    const verb = method === "get" ? "" : ` -X ${method.toUpperCase()}`;
    section.append(made("pre", `curl${verb} ${location.origin}${path}${asks}`));
    if (body) section.append(made("details", "", made("summary", "the body's schema"), made("pre", JSON.stringify(body, null, 2))));
    const answers = Object.entries(call.responses).map(([status, answer]) => made("li", `${status}: ${answer.description}`));
    section.append(made("details", "", made("summary", "answers"), made("ul", "", ...answers)));
    return section;
  }));
  document.getElementById("calls").append(...calls);
  document.documentElement.dataset.calls = calls.length;
})();
