"use strict";
// Tables sort by the column whose head is pressed, by mouse or keyboard: first one way, then the other.
// The order is kept for the time that the page is open, since the page of a run reloads.
document.querySelectorAll("table").forEach((table, place) => {
  const heads = [...table.querySelectorAll("th")];
  const body = table.tBodies[0];
  const key = (row, i) => row.cells[i].dataset.key ?? row.cells[i].textContent.trim();
  heads.forEach((head, i) => {
    const button = head.querySelector("button");
    if (!button || !body) return;
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      const first = numeric ? "descending" : "ascending";
      const next = head.getAttribute("aria-sort") === first ? (numeric ? "ascending" : "descending") : first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const number = (text) => parseFloat(text.replaceAll(",", "")) || 0;
      const compare = (a, b) =>
        numeric || a.cells[i].dataset.key !== undefined
          ? number(key(a, i)) - number(key(b, i))
          : key(a, i).localeCompare(key(b, i), undefined, { numeric: true });
      body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
      try { sessionStorage.setItem(`sort ${location.pathname} ${place}`, `${i} ${next}`); } catch { /* no storage */ }
    });
  });
  try {
    const [i, way] = (sessionStorage.getItem(`sort ${location.pathname} ${place}`) ?? "").split(" ");
    const head = way && heads[i];
    for (let n = 0; head && n < 2 && head.getAttribute("aria-sort") !== way; n++) head.querySelector("button").click();
  } catch { /* no storage */ }
});
