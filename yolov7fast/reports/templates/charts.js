// Charts show the values under the pointer, or under a cursor moved with the arrow keys, in their legend.
for (const figure of document.querySelectorAll("figure.chart[data-chart]")) {
  const svg = figure.querySelector("svg");
  const { box, limits, lines } = JSON.parse(figure.dataset.chart);
  const values = [...figure.querySelectorAll(".legend .value")];
  const last = values.map((value) => value.textContent);
  const at = figure.querySelector(".at");
  const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const make = (name) => svg.appendChild(document.createElementNS(svg.namespaceURI, name));
  const [cursor, dots] = [make("line"), lines.map((_, i) => make("circle"))];
  cursor.setAttribute("class", "cursor");
  dots.forEach((dot, i) => { dot.setAttribute("class", `dot c${i % 8}`); dot.setAttribute("r", 4.5); });
  const across = (x) => box[0] + ((x - limits[0]) / (limits[1] - limits[0])) * box[2];
  const down = (y) => box[1] + ((limits[3] - y) / (limits[3] - limits[2])) * box[3];
  const text = (v) => (v === 0 ? "0" : Math.abs(v) < 1e-4 || Math.abs(v) >= 1e6 ? v.toExponential(2) : `${+v.toPrecision(4)}`);
  let index = xs.length - 1;
  const nearest = (list, x) => list.reduce((best, v, i) => (Math.abs(v - x) < Math.abs(list[best] - x) ? i : best), 0);
  const show = (i) => {
    index = Math.min(Math.max(i, 0), xs.length - 1);
    const x = xs[index];
    figure.classList.add("reading");
    for (const [name, value] of [["x1", across(x)], ["x2", across(x)], ["y1", box[1]], ["y2", box[1] + box[3]]]) cursor.setAttribute(name, value);
    at.textContent = `${figure.dataset.x} ${text(x)}`;
    lines.forEach((line, n) => {
      const k = nearest(line.x, x), near = Math.abs(line.x[k] - x) <= (limits[1] - limits[0]) / 50;
      values[n].textContent = near ? text(line.y[k]) : "–";
      dots[n].style.display = near ? "" : "none";
      dots[n].setAttribute("cx", across(line.x[k]));
      dots[n].setAttribute("cy", down(line.y[k]));
    });
  };
  const hide = () => {
    figure.classList.remove("reading");
    at.textContent = "";
    values.forEach((value, i) => { value.textContent = last[i]; });
  };
  svg.addEventListener("pointermove", (event) => {
    const scale = svg.viewBox.baseVal.width / svg.getBoundingClientRect().width;
    const x = (event.clientX - svg.getBoundingClientRect().left) * scale;
    show(nearest(xs, limits[0] + ((x - box[0]) / box[2]) * (limits[1] - limits[0])));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("focus", () => show(index));
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (step) { event.preventDefault(); show(index + step); }
  });
}
