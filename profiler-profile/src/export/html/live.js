// A page that follows a run: what time of it is shown, and when its samples are asked for.

// For so many slices samples may still come that were taken in them.
const LATE = 4;
// Making, reading and showing samples takes one part in so many of the time.
const PART = 8;
const REFUSED = "Not allowed: open the address that the profiler has printed";

class Live {
  constructor(run) {
    this.run = run;
    this.page = null;
    this.shown = null;
    this.tick = null;
    this.isPaused = false;
    this.isAsking = false;
    this.isDue = false;
    this.isHeld = false;
    this.nextAt = 0;
    this.parts = {};
    for (const it of document.querySelectorAll("[id]")) this.parts[it.id] = it;
    const { time, choice } = LINK.read(location.hash);
    Object.assign(this, { span: time.span, range: time.range, before: time.before, linked: choice });
    this.showsLines = time.showsLines;
    const { strips, by } = this.parts;
    by.value = time.by;
    this.timeline = new Timeline(
      { strips, canvas: this.parts["strips-canvas"], cursor: this.parts["strip-cursor"] },
      run.slice_ms / 1000,
      { choose: (range) => this.mark(range), pick: (row) => this.pick(row) },
    );
    this.parts["span-window"].textContent = `Last ${(run.window * run.slice_ms) / 1000} s`;
    this.lines = new SourceView(this, this.parts);
    this.parts["lines-button"].hidden = !run.has_lines;
    this.listen();
    this.press();
  }

  listen() {
    const { parts } = this;
    const click = (id, action) => parts[id].addEventListener("click", action);
    click("span-window", () => this.choose("window", this.range));
    click("span-start", () => this.choose("start", this.range));
    click("span-range", () => this.choose("range", this.range));
    click("span-compare", () => this.compare());
    click("pause", () => this.pause());
    parts.by.addEventListener("change", () => {
      this.timeline.clear();
      this.look();
    });
    click("download", () => this.offer());
    click("lines-button", () => this.lines.open());
    parts.event.addEventListener("change", () => {
      this.timeline.clear();
      this.look();
    });
    document.addEventListener("visibilitychange", () => this.look());
    document.addEventListener("keydown", (event) => this.key(event));
    // What is being clicked stays where it is until it is.
    const hold = (isHeld) => () => (this.isHeld = isHeld);
    document.addEventListener("pointerdown", hold(true));
    document.addEventListener("pointerup", hold(false));
    document.addEventListener("pointercancel", hold(false));
  }

  key(event) {
    const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    const isButton = event.target.tagName === "BUTTON" && event.key === " ";
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping || isButton || document.querySelector("dialog[open]")) return;
    const actions = {
      " ": () => this.pause(),
      w: () => this.choose("window", this.range),
      s: () => this.choose("start", this.range),
      r: () => this.range && this.choose("range", this.range),
      v: () => this.compare(),
      g: () => this.parts.strips.focus(),
      a: () => this.lines.open(),
      d: () => this.offer(),
    };
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  }

  press() {
    const { parts, span, range, before, isPaused, isCompared, timeline } = this;
    for (const it of ["window", "start", "range", "compare"]) press(parts[`span-${it}`], it === span);
    for (const it of ["range", "compare"]) parts[`span-${it}`].disabled = !range;
    timeline.before = span === "compare" ? before : null;
    timeline.range = span === "range" || isCompared ? range : null;
    timeline.draw();
    press(parts.pause, isPaused);
    parts.pause.textContent = isPaused ? "Go on" : "Pause";
  }

  // Shows another time of the run.
  choose(span, range) {
    Object.assign(this, { span, range, isPaused: false, nextAt: 0, isDue: true, shown: null });
    this.press();
    this.look();
  }

  // A range was marked in the timeline, or none.
  mark(range) {
    if (this.span === "compare") this.choose(range ? "compare" : "range", range || this.range);
    else this.choose(range ? "range" : "window", range);
  }

  // Keeps the range to compare the next one with; once more, and that goes on alone.
  compare() {
    if (!this.range) return;
    if (this.span === "compare") {
      this.choose("range", this.range);
      return;
    }
    this.before = this.range;
    this.choose("compare", this.range);
    this.parts.strips.focus();
  }

  // Whether there is a second range, which is compared with the one before.
  get isCompared() {
    const { span, range, before } = this;
    return span === "compare" && (range.first !== before.first || range.end !== before.end);
  }

  pause() {
    this.isPaused = !this.isPaused;
    this.press();
    this.describe();
    this.look();
  }

  // Filters by what a strip is of; once more, and the filter goes.
  pick(row) {
    const { page, parts } = this;
    if (!page || parts.by.value === "cpu") return;
    const { profile, filter } = page;
    const process = profile.processes.findIndex((it) => it.pid === row.process);
    if (process < 0) return;
    if (parts.by.value === "process") {
      page.set("process", filter.process === process ? null : process);
      return;
    }
    const thread = profile.threads.findIndex((it) => it.tid === row.id && it.process === process);
    if (thread >= 0) page.set("thread", filter.thread === thread ? null : thread);
  }

  // The run has gone on.
  follow(tick) {
    this.tick = tick;
    this.error = null;
    this.describe();
    if (this.page) this.link();
    this.look();
  }

  // The event that is chosen; the first where all are shown.
  get source() {
    return (this.page ? this.page.filter.source : this.linked.source) || 0;
  }

  // What is asked for.
  query() {
    const { span, range, before, source, isCompared } = this;
    if (span === "window" || span === "start") return `span=${span}`;
    const query = `first=${range.first}&end=${range.end}`;
    return isCompared ? `${query}&before_first=${before.first}&before_end=${before.end}&source=${source}` : query;
  }

  // Whether what is shown can still change.
  get isOld() {
    if (!this.shown || this.isDue) return true;
    if (this.isPaused || document.hidden) return false;
    if (this.span === "window" || this.span === "start") return true;
    return this.shown.at < Math.max(this.range.end, this.isCompared ? this.before.end : 0) + LATE;
  }

  // Asks for what there is to show, unless it was asked for, or that would take too much of the time.
  async look() {
    if (this.isAsking || !this.tick) return;
    this.isAsking = true;
    try {
      await this.askStrips();
      if (this.isOld && performance.now() >= this.nextAt) {
        this.isDue = false;
        const query = this.query();
        const text = await ask(`data?${query}`);
        const begun = performance.now();
        const answer = JSON.parse(text);
        // Another time may have been chosen meanwhile.
        if (query === this.query() && !this.isHeld) this.show(answer, query);
        // Waiting for a busy machine costs it nothing.
        const spent = answer.took_ms + performance.now() - begun;
        this.nextAt = performance.now() + (PART - 1) * spent;
      }
      this.error = null;
    } catch (error) {
      this.error = error.message;
    }
    this.isAsking = false;
    this.describe();
    if (this.isDue && !this.error) this.look();
  }

  async askStrips() {
    if (document.hidden) return;
    const { timeline, parts } = this;
    const since = Math.max(timeline.since - LATE, 0);
    const by = parts.by.value;
    const strips = JSON.parse(await ask(`strips?by=${by}&source=${this.source}&since=${since}`));
    const isSame = by === parts.by.value && since === Math.max(timeline.since - LATE, 0);
    if (isSame) timeline.take(strips);
  }

  show({ first, end, before, profile }, query) {
    this.shown = { first, end, before, query, at: this.tick.end };
    const samples = new Profile(profile);
    if (this.page) {
      this.page.take(samples);
    } else {
      this.page = new Page(samples);
      this.linked.apply(this.page);
      if (this.showsLines) this.lines.open();
      requestAnimationFrame(() => performance.mark("shown"));
    }
    this.lines.renew();
    this.link();
  }

  link() {
    const { span, range, before, parts } = this;
    const link = LINK.write(new Choice(this.page), { span, range, before, by: parts.by.value, showsLines: this.lines.isOpen });
    if (link !== location.hash) history.replaceState(null, "", location.pathname + link);
  }

  // What is shown, under the filters that are chosen, as a query.
  asked() {
    const { page, shown } = this;
    const { filter, profile } = page;
    const of = new URLSearchParams(shown.query === "span=start" ? "span=start" : `first=${shown.first}&end=${shown.end}`);
    const process = filter.process === null ? null : profile.processes[filter.process].pid;
    const thread = filter.thread === null ? null : profile.threads[filter.thread].tid;
    for (const [name, value] of Object.entries({ source: filter.source, pid: process, tid: thread })) {
      if (value !== null) of.set(name, value);
    }
    return of;
  }

  // Offers what is shown, under the filters that are chosen, as files.
  offer() {
    const { parts, page, shown, run } = this;
    if (!page || !shown) return;
    const { filter } = page;
    const of = this.asked();
    const { before } = shown;
    if (before) {
      of.set("before_first", before.first);
      of.set("before_end", before.end);
    }
    const formats = run.formats.filter(([, , isOfChanges]) => isOfChanges || !before);
    const list = formats.map(([name, help]) => {
      const [item, link] = [element("li"), element("a", "", name)];
      link.href = `download/${name}?${of}`;
      link.download = "";
      item.append(link, element("span", "", help));
      return item;
    });
    const unfiltered = filter.module === null ? "" : " Files have the samples of all binaries.";
    parts["downloads-what"].textContent = `${before ? "What has changed" : "What is shown"}, under the filters by event, process and thread.${unfiltered}`;
    parts.formats.replaceChildren(...list);
    parts.downloads.showModal();
  }

  // Says what is shown, and what the run costs.
  describe() {
    const { parts, tick, shown, run, error, isPaused, hasEnded } = this;
    const seconds = (slices) => `${((slices * run.slice_ms) / 1000).toFixed(1)} s`;
    parts.state.classList.toggle("bad", Boolean(error));
    const facts = [];
    if (error) facts.push(error);
    else if (hasEnded) facts.push("The run has ended");
    else facts.push(isPaused ? "Paused" : { range: "Range", compare: "Compare" }[this.span] || "Live");
    if (this.span === "compare" && !this.isCompared) facts.push("mark another range in the timeline");
    const time = ({ first, end }) => {
      const ago = tick.end - end;
      return ago > LATE ? `${seconds(end - first)}, until ${seconds(ago)} ago` : seconds(end - first);
    };
    if (shown && shown.before) facts.push(`before: ${time(shown.before)}`, `after: ${time(shown)}`);
    else if (shown && shown.query !== "span=start") facts.push(time(shown));
    const isGone = (range) => range && range.end <= range.first;
    if (shown && shown.query.startsWith("first=") && (isGone(shown) || isGone(shown.before))) {
      facts.push("this time is no longer kept");
    }
    if (tick && tick.is_behind) facts.push("samples wait for their names");
    if (tick && tick.is_short) facts.push("memory does not suffice for more: --max-memory");
    parts.state.textContent = facts.join(" · ");
    if (!tick || !this.page) return;
    const lost = tick.lost.reduce((sum, [, count]) => sum + count, 0);
    const why = tick.lost.map(([reason, count]) => `${reason} ${grouped(count)}`).join(", ");
    const words = [
      element("b", lost > 0 ? "lost" : "", grouped(lost)),
      element("span", lost > 0 ? "lost" : "", lost > 0 ? ` lost so far (${why})` : " lost so far"),
    ];
    if (tick.cpu !== null) words.push(element("i", "", "·"), element("b", "", `${(100 * tick.cpu).toFixed(1)}%`), " of a CPU for the profiler");
    words.push(element("i", "", "·"), element("b", "", `${(tick.memory_bytes / (1 << 20)).toFixed(0)} MiB`));
    parts.ledger.replaceChildren(...words);
  }
}

async function ask(what) {
  const answer = await fetch(what, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.status === 401 ? REFUSED : `The profiler answers ${answer.status}`);
  return answer.text();
}

// What leads here is in the address once; a cookie has its place.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

// Listens to the run while somebody looks: a browser has six connections for all of its windows.
class Listener {
  constructor() {
    this.live = null;
    this.events = null;
    document.addEventListener("visibilitychange", () => this.follow());
    this.say("Waiting for samples");
    this.follow();
  }

  follow() {
    if (document.hidden && this.events) {
      this.events.close();
      this.events = null;
    } else if (!document.hidden && !this.events && !(this.live && this.live.hasEnded)) {
      this.listen();
    }
  }

  listen() {
    const events = new EventSource("events");
    this.events = events;
    const on = (name, action) => events.addEventListener(name, (event) => action(event.data && JSON.parse(event.data)));
    on("run", (run) => (this.live ||= new Live(run)));
    on("tick", (tick) => this.live.follow(tick));
    on("end", () => {
      events.close();
      this.live.hasEnded = true;
      this.live.describe();
    });
    on("error", () => this.say(events.readyState === EventSource.CLOSED ? REFUSED : "Not connected: trying again"));
  }

  say(text) {
    const { live } = this;
    if (live) {
      live.error = text;
      live.describe();
    } else {
      document.getElementById("state").textContent = text;
    }
  }
}

new Listener();
