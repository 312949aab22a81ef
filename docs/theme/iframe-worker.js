// The theme searches in a worker. Browsers refuse workers to a page that was opened from disk (file://), so there the
// worker's script runs in a hidden frame of the page. The plugin "offline" gives it the index as a script.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.inside = frame.contentWindow;
    this.inside.document.open();
    this.inside.document.write("<body></body>");
    this.inside.document.close();
    // An answer comes later, as that of a worker does: one that came at once would find nobody listening yet.
    this.inside.postMessage = (data) => setTimeout(() => this.dispatchEvent(new MessageEvent("message", {data})));
    const script = this.inside.document.createElement("script");
    script.src = url;
    this.ready = new Promise((resolve) => { script.onload = resolve; });
    this.inside.document.body.append(script);
  }

  async postMessage(data) {
    await this.ready;
    this.inside.dispatchEvent(new MessageEvent("message", {data}));
  }
}
if (location.protocol === "file:") window.Worker = FrameWorker;
