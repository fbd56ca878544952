// A program that is told what to do: one JSON object a line on stdin, one answer a line on stdout.
import { createRequire } from "node:module";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

// Import a package from the node_modules directory that is the first argument.
export async function load(name) {
  const require = createRequire(path.join(process.argv[2], "anything.js"));
  const found = await import(pathToFileURL(require.resolve(name)));
  return found.default ?? found;
}

export function say(answer) {
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}

// `verbs` are the functions that a command can name; the command is their argument.  An answer
// to a question of theirs is a command without a verb.
export function converse(verbs) {
  const waiting = [];
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", async (line) => {
    const command = JSON.parse(line);
    if (command.verb === undefined) {
      waiting.shift()(command.answer);
      return;
    }
    try {
      say({ value: (await verbs[command.verb](command)) ?? null });
    } catch (error) {
      say({ error: { code: error.code ?? null, message: error.message } });
    }
  });
  lines.on("close", () => process.exit(0));
  return {
    ask(question) {
      say({ question });
      return new Promise((resolve) => waiting.push(resolve));
    },
  };
}
