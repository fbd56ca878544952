// fs-safe's file lock, either version.
import { converse, load } from "./conversation.mjs";

const { acquireFileLock } = await load("@openclaw/fs-safe/file-lock");
const handles = [];
let asked = [];

const conversation = converse({
  // Acquire by the options of the package; `payload` is the object itself.  What the callbacks
  // were told is kept for `told`.  `reclaim` and `remove` are what they answer; "ask" asks back.
  async acquire({ target, payload, reclaim, remove, options }) {
    const answer = async (name, given, told) => {
      asked.push({ name, ...told });
      return given === "ask" ? await conversation.ask(name) : given;
    };
    const handle = await acquireFileLock(target, {
      staleMs: 30_000,
      payload: () => payload ?? { pid: process.pid, createdAt: new Date().toISOString() },
      ...(reclaim === undefined
        ? {}
        : { shouldReclaim: (told) => answer("reclaim", reclaim, told) }),
      ...(remove === undefined
        ? {}
        : { shouldRemoveStaleLock: (told) => answer("remove", remove, told) }),
      ...options,
    });
    handles.push(handle);
    return { lockPath: handle.lockPath, normalizedTargetPath: handle.normalizedTargetPath };
  },
  async release() {
    await handles.pop().release();
  },
  told() {
    const told = asked;
    asked = [];
    return told;
  },
  // What the language itself makes of values, for comparison.
  stringify: ({ values }) => values.map((value) => JSON.stringify(value, null, 2)),
  dates: ({ values }) => values.map((value) => Date.parse(value)),
});
