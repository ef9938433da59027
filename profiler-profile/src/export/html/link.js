// What is shown, in the part of the address that no server gets.

const LINK = {
  write(choice, { span, range, before, by, showsLines }) {
    const link = new URLSearchParams();
    const text = ({ first, end }) => `${first}-${end}`;
    link.set("span", span === "range" || span === "compare" ? text(range) : span);
    if (span === "compare") link.set("before", text(before));
    if (by !== "cpu") link.set("by", by);
    if (showsLines) link.set("lines", "1");
    if (choice.source) link.set("event", choice.source);
    if (choice.process && (choice.isProcessChosen || choice.thread)) {
      const { pid, name } = choice.process;
      link.set("process", JSON.stringify([pid, name, choice.isProcessChosen]));
    }
    if (choice.thread) link.set("thread", JSON.stringify([choice.thread.tid, choice.thread.name]));
    if (choice.module !== null) link.set("binary", choice.module);
    if (choice.search) link.set("search", choice.search);
    if (choice.isBottomUp) link.set("order", "callers");
    if (!choice.growsUp) link.set("direction", "icicle");
    if (choice.selected) link.set("function", JSON.stringify([choice.selected.name, choice.selected.module, choice.selected.kind]));
    if (choice.zoom.length > 0) link.set("zoom", JSON.stringify(choice.zoom));
    return `#${link}`;
  },

  // Of what makes no sense, nothing is chosen.
  read(text) {
    const link = new URLSearchParams(text.replace(/^#/, ""));
    const list = (name) => {
      try {
        const value = JSON.parse(link.get(name));
        return Array.isArray(value) ? value : null;
      } catch {
        return null;
      }
    };
    const slices = (name) => {
      const found = /^(\d{1,9})-(\d{1,9})$/.exec(link.get(name) || "");
      return found && { first: Number(found[1]), end: Number(found[2]) };
    };
    const [range, before] = [slices("span"), slices("before")];
    const time = {
      span: range ? (before ? "compare" : "range") : link.get("span") === "start" ? "start" : "window",
      range,
      before: range && before,
      showsLines: link.get("lines") === "1",
      by: ["process", "thread"].find((it) => it === link.get("by")) || "cpu",
    };
    const [process, thread, selected] = [list("process"), list("thread"), list("function")];
    const number = (it) => (Number.isInteger(it) ? it : null);
    const choice = Object.assign(Object.create(Choice.prototype), {
      source: /^[0-3]$/.test(link.get("event")) ? Number(link.get("event")) : null,
      module: link.get("binary"),
      process: process && { pid: number(process[0]), name: String(process[1]), command: "" },
      isProcessChosen: Boolean(process && process[2]),
      thread: process && thread && { tid: number(thread[0]), name: String(thread[1]) },
      isBottomUp: link.get("order") === "callers",
      growsUp: link.get("direction") !== "icicle",
      search: link.get("search") || "",
      selected: selected && { name: String(selected[0]), module: String(selected[1]), kind: number(selected[2]) },
      zoom: (list("zoom") || []).map(String),
      back: [],
      cursor: null,
    });
    return { time, choice };
  },
};
