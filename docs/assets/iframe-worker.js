/* Search from disk. A browser starts no worker from a file:// page, so there its script runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.pending = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const scope = frame.contentWindow;
      scope.postMessage = (data) => this.answer(data);
      scope.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => this.load(scope, new URL(next, document.baseURI).href)), Promise.resolve());
      this.scope = scope;
      this.load(scope, url.toString()).then(() => {
        this.ready = true;
        this.pending.splice(0).forEach((data) => this.postMessage(data));
      });
    }
    load(scope, url) {
      return new Promise((done, failed) => {
        const script = scope.document.createElement("script");
        script.src = url;
        script.onload = done;
        script.onerror = failed;
        scope.document.body.appendChild(script);
      });
    }
    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      if (this.ready) this.scope.dispatchEvent(new MessageEvent("message", { data }));
      else this.pending.push(data);
    }
    terminate() {}
  };
}
