// Builds the page: `node build.mjs [FOLDER]` (default: dist). The result depends on the sources and the pinned packages
// alone, because dist is committed and a test compares it with what this script writes.
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

process.chdir(dirname(fileURLToPath(import.meta.url)));
const target = resolve(process.argv[2] ?? "dist");

const result = await build({
  entryPoints: { app: "src/main.tsx", style: "src/styles/all.css" },
  bundle: true,
  charset: "utf8",
  format: "esm",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  minify: true,
  outdir: target,
  target: ["chrome109", "firefox115", "safari16.4"],
  write: false,
});

rmSync(target, { recursive: true, force: true });
mkdirSync(join(target, "assets"), { recursive: true });
// A name with a hash may be cached for ever.
const names = {};
for (const file of result.outputFiles) {
  const hash = createHash("sha256").update(file.contents).digest("hex").slice(0, 10);
  const [name, extension] = basename(file.path).split(".");
  names[`${name}.${extension}`] = `${name}-${hash}.${extension}`;
  // `gristmill report` places both in one document.
  if (/<\/(script|style)/i.test(file.text)) throw new Error(`${file.path} would end the element that holds it`);
  writeFileSync(join(target, "assets", names[`${name}.${extension}`]), file.contents);
}
let page = readFileSync("src/index.html", "utf8");
for (const [name, hashed] of Object.entries(names)) page = page.replace(name, hashed);
// Within the page: a report has no server to ask for it.
const icon = readFileSync("src/favicon.svg").toString("base64");
page = page.replace("/favicon.svg", `data:image/svg+xml;base64,${icon}`);
writeFileSync(join(target, "index.html"), page);
copyFileSync("src/favicon.svg", join(target, "favicon.svg"));

const packages = ["preact", "@preact/signals", "@preact/signals-core", "uplot"];
const licenses = packages.map((name) => {
  const folder = join("node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((file) => file.toUpperCase().startsWith("LICENSE"));
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
});
writeFileSync(join(target, "licenses.txt"), licenses.join(`\n${"-".repeat(80)}\n\n`));
