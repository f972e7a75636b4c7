// Run a Python file under CPython compiled to WebAssembly: `node pyodide.mjs PACKAGE REPO SITE FILE`.

const [package_, repo, site, file] = process.argv.slice(2);
const { loadPyodide } = await import(`${package_}/pyodide.mjs`);
const python = await loadPyodide();
for (const [name, folder] of [
  ["/repo", repo],
  ["/site", site],
]) {
  python.FS.mkdirTree(name);
  python.mountNodeFS(name, folder);
}
const program = `
import os, runpy, sys
sys.dont_write_bytecode = True
sys.path[:0] = ["/repo", "/site"]
os.chdir("/repo")
runpy.run_path("${file}")["main"]()
`;
try {
  process.exitCode = python.runPython(program);
} catch (error) {
  console.error(error.message); // Node would print the line that threw, all of a megabyte
  process.exitCode = 1;
}
