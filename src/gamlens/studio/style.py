"""The studio's style sheet and the script of its own parts. No font, file or address from elsewhere."""

CSS = """
.gradio-container { max-width: 1240px !important; margin: 0 auto !important; }
.gl-title { display: flex; align-items: baseline; gap: .2rem .8rem; flex-wrap: wrap; padding: .3rem 0; }
.gl-title h1 { font-size: 1.5rem; font-weight: 700; margin: 0; letter-spacing: -.01em; }
.gl-title p { margin: 0; color: var(--body-text-color-subdued); }
.gl-head { display: flex; align-items: baseline; flex-wrap: wrap; gap: .15rem .8rem; margin: 0 0 .6rem; }
.gl-head h2 { font-size: 1.35rem; font-weight: 700; margin: 0; }
.gl-head p { margin: 0; color: var(--body-text-color-subdued); font-size: .92rem; flex: 1 1 16rem; }
.gl-back { border: 1px solid var(--border-color-primary); border-radius: 999px; padding: .15rem .8rem;
  background: var(--background-fill-primary); color: var(--body-text-color); cursor: pointer; font-size: .88rem; }
.gl-figures { display: grid; gap: .7rem; align-items: start; width: 100%; margin: 0 auto;
  max-width: calc(62vh * var(--r) + 1rem); min-width: min(100%, 420px); }
.gl-figures figure { margin: 0; min-width: 0; }
.gl-frame { position: relative; line-height: 0; border-radius: 10px; overflow: hidden; width: 100%;
  background: var(--background-fill-secondary); }
.gl-frame[data-side] { cursor: crosshair; }
.gl-frame img { display: block; width: 100%; height: auto; margin: 0; }
.gl-figures figcaption { display: flex; flex-wrap: wrap; gap: .1rem .6rem; padding: .35rem .1rem 0; font-size: .9rem; }
.gl-figures figcaption span { color: var(--body-text-color-subdued); overflow-wrap: anywhere; }
.gl-dot { position: absolute; width: 20px; height: 20px; margin: -10px 0 0 -10px; border-radius: 50%;
  border: 3px solid #fff; box-shadow: 0 0 0 2px #111, inset 0 0 0 2px #111; pointer-events: none; }
.gl-cell { position: absolute; border: 2px dashed #fff; outline: 1px solid rgba(0,0,0,.6); pointer-events: none; }
.gl-notes p { margin: .5rem 0 0; padding: .5rem .8rem; border-left: 4px solid #e0912b; border-radius: 4px;
  background: var(--background-fill-secondary); font-size: .92rem; }
.gl-message { border-radius: 10px; padding: .8rem 1rem; margin-bottom: .7rem; }
.gl-message p { margin: 0; overflow-wrap: anywhere; }
.gl-error { border: 1px solid #c0392b; background: color-mix(in srgb, #c0392b 12%, transparent); }
.gl-hint { border: 2px dashed var(--border-color-primary); padding: 3.5rem 1rem; text-align: center;
  color: var(--body-text-color-subdued); }
.gl-bars { list-style: none; margin: 0; padding: 0; display: grid; gap: .3rem; }
.gl-bars li { margin: 0; padding: 0; }
.gl-bars button { width: 100%; display: grid; grid-template-columns: 1fr auto; gap: .25rem .6rem; text-align: left;
  padding: .4rem .65rem; border: 1px solid var(--border-color-primary); border-radius: 8px; cursor: pointer;
  background: var(--background-fill-primary); color: var(--body-text-color); font-size: .93rem; }
.gl-bars button:hover { border-color: var(--color-accent); }
.gl-bars button[aria-pressed=true] { border-color: var(--color-accent); box-shadow: inset 3px 0 0 var(--color-accent);
  font-weight: 600; }
.gl-name { overflow-wrap: anywhere; }
.gl-value { font-variant-numeric: tabular-nums; }
.gl-track { grid-column: 1 / -1; height: 5px; border-radius: 3px; background: var(--background-fill-secondary);
  overflow: hidden; }
.gl-track i { display: block; height: 100%; min-width: 2px; background: var(--color-accent); }
.gl-examples { display: flex; gap: .5rem; flex-wrap: wrap; }
.gl-examples button { border: 1px solid var(--border-color-primary); border-radius: 10px; padding: 3px 3px 2px;
  cursor: pointer; background: var(--background-fill-primary); color: var(--body-text-color); font-size: .78rem;
  display: grid; gap: 2px; justify-items: center; }
.gl-examples button:hover { border-color: var(--color-accent); }
.gl-thumbs { display: flex; gap: 2px; }
.gl-thumbs img { width: 58px; height: 46px; object-fit: cover; border-radius: 7px; margin: 0; display: block; }
.gl-frame:focus-visible, .gl-bars button:focus-visible, .gl-examples button:focus-visible, .gl-back:focus-visible {
  outline: 3px solid var(--color-accent); outline-offset: 2px; }
.gl-label { font-size: .85rem; font-weight: 600; color: var(--body-text-color-subdued); margin: 0 0 .35rem; }
.gl-tip { margin: .7rem auto 0; padding: .3rem .9rem; font-size: .92rem; text-align: center; width: fit-content;
  border-radius: 999px; background: color-mix(in srgb, var(--color-accent) 12%, transparent); }
#class-stage, #pair-stage { background: var(--block-background-fill) !important;
  border: 1px solid var(--border-color-primary); border-radius: 12px; padding: .9rem !important; }
.html-container { padding: 0 !important; }
#dark { align-self: center; flex-grow: 0; }
.gl-foot { color: var(--body-text-color-subdued); font-size: .82rem; padding: .3rem 0 .8rem; }
.dark { --color-accent: var(--primary-400); }
@media (max-width: 640px) {
  .gl-figures.gl-3 { grid-template-columns: minmax(0, 1fr) !important; }
  .gl-figures { gap: .4rem; }
  .gl-head h2 { font-size: 1.15rem; }
  .gradio-container, .gradio-container > main { padding: .4rem !important; }
  .gl-side, .gl-main { display: contents !important; }
  .gl-side > * { order: 1; flex: 1 1 100% !important; }
  .gl-main > * { order: 4; flex: 1 1 100% !important; }
  #class-stage { order: 2; }
  #bars, .gl-side > :has(#wanted) { order: 3; }
  #title { flex: 1 1 100% !important; min-width: 100% !important; }
  #class-stage, #pair-stage { padding: .6rem !important; }
}
@media (prefers-reduced-motion: reduce) { * { animation: none !important; transition: none !important; } }
"""

ACT = """
const ask = (frame, x, y) => {
  const clip = (v) => Math.min(1, Math.max(0, v));
  trigger('click', {side: frame.dataset.side, x: clip(x), y: clip(y)});
};
element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-pick]');
  if (button) { trigger('click', {pick: button.dataset.pick}); return; }
  const frame = event.target.closest('[data-side]');
  if (!frame) return;
  const box = frame.getBoundingClientRect();
  ask(frame, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
});
element.addEventListener('keydown', (event) => {
  const frame = event.target.closest('[data-side]');
  const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
                Enter: [0, 0], ' ': [0, 0]}[event.key];
  if (!frame || !step) return;
  event.preventDefault();
  ask(frame, Number(frame.dataset.x) + step[0] / 14, Number(frame.dataset.y) + step[1] / 14);
});
"""

SAVE = """
(text) => {
  if (!text) return;
  const file = JSON.parse(text);
  const bytes = Uint8Array.from(atob(file.data), (letter) => letter.charCodeAt(0));
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([bytes], {type: file.kind}));
  link.download = file.name;
  document.body.appendChild(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
"""

DARK = "() => { document.body.classList.toggle('dark'); }"
