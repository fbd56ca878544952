// proper-lockfile, whose lock is a directory.
import { converse, load } from "./conversation.mjs";

const lockfile = await load("proper-lockfile");

converse({
  async acquire({ target, options }) {
    await lockfile.lock(target, { realpath: false, ...options });
  },
  release: ({ target }) => lockfile.unlock(target, { realpath: false }),
  check: ({ target }) => lockfile.check(target, { realpath: false }),
});
