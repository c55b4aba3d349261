// The page of a run in progress reloads while it is visible; a button pauses that.
const live = document.getElementById("live");
if (live) {
  const key = `paused ${location.pathname}`;
  const button = live.querySelector("button");
  let paused = false;
  try { paused = sessionStorage.getItem(key) === "1"; } catch { /* no storage here: refreshing cannot be remembered */ }
  const show = () => { button.textContent = paused ? "Refresh again" : "Pause refreshing"; button.hidden = false; };
  button.addEventListener("click", () => {
    paused = !paused;
    try { sessionStorage.setItem(key, paused ? "1" : "0"); } catch { /* as above */ }
    show();
  });
  show();
  const age = Date.now() / 1000 - Number(live.dataset.updated);
  if (age > Number(live.dataset.stalled)) {
    live.querySelector(".stalled").textContent =
      `No update for ${Math.round(age / 60)} min: was it killed? Resume it with the command below.`;
  }
  setInterval(() => {
    const reading = document.querySelector(".chart.reading, summary:focus");
    if (!paused && !reading && document.visibilityState === "visible") location.reload();
  }, 1000 * Number(live.dataset.refresh));
}
