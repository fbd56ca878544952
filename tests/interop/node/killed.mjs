// Take a lock again and again until there is a file "stop", ready to be killed at any moment.
// Arguments: node_modules, the package, the target, and a directory for the judge: what holds
// has a file there with its process number as its name, and must not see that of a living one.
import fs from "node:fs";

import { load } from "./conversation.mjs";

const [, , , name, target, place] = process.argv;
const { acquireFileLock } = await load(name);
const retry = { retries: 100_000, minTimeout: 1, maxTimeout: 5, factor: 1.3, randomize: true };
const mine = `${place}/holders/${process.pid}`;

function lives(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

const soon = () => new Promise((resolve) => setTimeout(resolve, 200));

async function judge() {
  fs.writeFileSync(mine, "");
  for (const other of fs.readdirSync(`${place}/holders`)) {
    if (Number(other) === process.pid || !lives(Number(other))) continue;
    await soon(); // one that is being killed may pass for alive until it is reaped
    if (lives(Number(other))) {
      fs.appendFileSync(`${place}/report`, `${name}: ${process.pid} beside ${other}\n`);
    }
  }
}

while (!fs.existsSync(`${place}/stop`)) {
  const options = {
    staleMs: 600_000,
    timeoutMs: 5_000,
    retry,
    payload: () => ({ pid: process.pid, createdAt: new Date().toISOString() }),
  };
  let handle;
  try {
    handle = await acquireFileLock(target, options);
  } catch (error) {
    if (error.code !== "file_lock_stale" && error.code !== "file_lock_timeout") throw error;
    continue;
  }
  await judge();
  await new Promise((resolve) => setImmediate(resolve));
  fs.unlinkSync(mine);
  await handle.release();
  fs.appendFileSync(`${place}/won`, "node\n");
}
