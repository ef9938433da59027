"use strict";
(() => {
  // As the file was written with.
  const MARGIN = 10;
  const CHARACTER = 7;
  const SVG = "http://www.w3.org/2000/svg";
  const root = document.documentElement;

  function one(of, selector) {
    return of.querySelector(selector);
  }

  // As much of a name as a frame of this width shows.
  function fitting(name, width) {
    const places = (it) => (it.codePointAt(0) < 128 ? 1 : 2);
    const room = (width - 6) / CHARACTER;
    const characters = [...name];
    if (characters.reduce((sum, it) => sum + places(it), 0) <= room) return name;
    let taken = 2;
    let shown = "";
    for (const it of characters) {
      taken += places(it);
      if (taken > room) break;
      shown += it;
    }
    return shown && shown + "..";
  }

  function readFrame(group) {
    const rect = one(group, "rect");
    const title = one(group, "title").textContent;
    return {
      group,
      rect,
      text: one(group, "text"),
      title,
      name: title.slice(0, title.lastIndexOf(" (")),
      start: Number(group.dataset.x),
      samples: Number(group.dataset.n),
      y: Number(rect.getAttribute("y")),
    };
  }

  class Graph {
    constructor(svg) {
      this.width = Number(svg.dataset.width) - 2 * MARGIN;
      this.details = one(svg, ".details");
      this.matched = one(svg, ".matched");
      this.reset = one(svg, ".reset");
      this.frames = [...svg.querySelectorAll(".f")].map(readFrame);
      this.all = this.frames[0];
      const of = new Map(this.frames.map((frame) => [frame.group, frame]));
      const under = (event) => of.get(event.target.closest(".f"));
      svg.addEventListener("click", (event) => {
        const frame = under(event);
        if (frame) this.zoom(frame);
      });
      svg.addEventListener("mouseover", (event) => {
        const frame = under(event);
        this.details.textContent = frame ? "Function: " + frame.title : " ";
      });
      svg.addEventListener("mouseleave", () => (this.details.textContent = " "));
      press(this.reset, () => this.zoom(this.all));
      press(one(svg, ".search"), ask);
    }

    zoom(to) {
      const end = to.start + to.samples;
      const scale = this.width / Math.max(to.samples, 1);
      for (const frame of this.frames) {
        const frameEnd = frame.start + frame.samples;
        // Rows go up: what has called it is further down.
        const calls = frame.y > to.y && frame.start <= to.start && frameEnd >= end;
        const within = frame.y <= to.y && frame.start >= to.start && frameEnd <= end;
        frame.group.classList.toggle("caller", calls);
        frame.group.classList.toggle("hidden", !calls && !within);
        if (calls) this.place(frame, 0, this.width);
        if (within) this.place(frame, (frame.start - to.start) * scale, frame.samples * scale);
      }
      this.reset.classList.toggle("hidden", to === this.all);
    }

    place(frame, x, width) {
      frame.rect.setAttribute("x", MARGIN + x);
      frame.rect.setAttribute("width", Math.max(width, 0.1));
      const shown = fitting(frame.name, width);
      if (!frame.text && shown) {
        frame.text = document.createElementNS(SVG, "text");
        frame.text.setAttribute("y", frame.y + 12);
        frame.group.append(frame.text);
      }
      if (frame.text) {
        frame.text.setAttribute("x", MARGIN + x + 3);
        frame.text.textContent = shown;
      }
    }

    // Marks what matches. A match within a match has its samples counted once: callers come first here, and
    // those they call begin before they end.
    search(pattern) {
      let matched = 0;
      let end = 0;
      const matching = [];
      for (const frame of this.frames) {
        const isMatch = Boolean(pattern) && pattern.test(frame.name);
        frame.group.classList.toggle("match", isMatch);
        if (isMatch) matching.push(frame);
      }
      for (const frame of matching) {
        if (frame.start < end) continue;
        matched += frame.samples;
        end = frame.start + frame.samples;
      }
      const share = (100 * matched) / Math.max(this.all.samples, 1);
      this.matched.textContent = pattern ? `Matched: ${share.toFixed(1)}%` : " ";
    }
  }

  function press(button, action) {
    button.addEventListener("click", action);
    button.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        action();
      }
    });
  }

  let searched = "";

  function search(text) {
    let pattern = null;
    try {
      pattern = text ? new RegExp(text) : null;
    } catch (error) {
      for (const graph of graphs) graph.matched.textContent = error.message;
      return;
    }
    searched = text;
    for (const graph of graphs) graph.search(pattern);
    for (const button of root.querySelectorAll(".search")) {
      button.textContent = pattern ? "Reset Search" : "Search";
    }
  }

  function ask() {
    if (searched) return search("");
    const text = prompt("Search for functions by a regular expression, such as ^ext4_ or alloc|free");
    if (text !== null) search(text);
  }

  const graphs = [...root.querySelectorAll(".graph")].map((svg) => new Graph(svg));

  window.addEventListener("keydown", (event) => {
    const isFind = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "f";
    if (isFind || event.key === "F3") {
      event.preventDefault();
      search("");
      ask();
    } else if (event.key === "Escape") {
      for (const graph of graphs) graph.zoom(graph.all);
    }
  });
  // Stacks begin at the bottom, which may be far below.
  window.addEventListener("load", () => window.scrollTo(0, root.scrollHeight));
})();
