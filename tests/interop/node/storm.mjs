// Take a lock again and again, and make sure each time to be alone.
// Arguments: node_modules, the package, the target, how often, the judge's file, the report, and
// "removing" for a storm in which everybody leaves a dead lock behind and removes that of others.
import fs from "node:fs";

import { load } from "./conversation.mjs";

const [, , , name, target, rounds, judge, report, kind] = process.argv;
const retry = { retries: 100_000, minTimeout: 1, maxTimeout: 5, factor: 1.3, randomize: true };

const removing = {
  staleRecovery: "remove-if-unchanged",
  shouldReclaim: ({ payload }) => payload?.dead === true,
  shouldRemoveStaleLock: async ({ payload }) => {
    // Long enough for others to come in between.
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 3));
    return payload?.dead === true;
  },
};

async function acquireBy(name) {
  if (name === "proper-lockfile") {
    const lockfile = await load(name);
    return async () => lockfile.lock(target, { realpath: false, retries: retry });
  }
  const { acquireFileLock } = await load(name);
  return async () => {
    for (;;) {
      try {
        const handle = await acquireFileLock(target, {
          staleMs: 60_000,
          retry,
          payload: () => ({ pid: process.pid, createdAt: new Date().toISOString() }),
          ...(kind === "removing" ? removing : {}),
        });
        return () => handle.release();
      } catch (error) {
        // fs-safe takes a lock that went away while it looked for a stale one, if another empty
        // file with the same inode number is there by then.  It does so without semlock too.
        if (error.code !== "file_lock_stale") throw error;
      }
    }
  };
}

const acquire = await acquireBy(name);
for (let round = 0; round < Number(rounds); round += 1) {
  const release = await acquire();
  try {
    fs.writeFileSync(judge, name, { flag: "wx" });
    await new Promise((resolve) => setImmediate(resolve));
    fs.unlinkSync(judge);
  } catch (error) {
    fs.appendFileSync(report, `${name}: ${error.message}\n`);
  }
  await release();
  if (kind === "removing") {
    try {
      fs.writeFileSync(`${target}.lock`, '{"dead": true}', { flag: "wx" });
    } catch (error) {
      if (error.code !== "EEXIST") throw error;
    }
  }
}
