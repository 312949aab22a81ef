// The picture on the front page: the handle moves the border between the photo and its map.
for (const frame of document.querySelectorAll(".before-after")) {
  const handle = frame.querySelector("input");
  const move = () => frame.style.setProperty("--at", `${handle.value}%`);
  handle.addEventListener("input", move);
  move();
}
