// One step of a hold that processes pass to each other, as in detached.py. Its arguments are the URL of the service,
// the step, and the file with the lock.
import assert from "node:assert";
import { readFileSync, writeFileSync } from "node:fs";
import { LockHeld, LockLost, connect } from "fencelock";

const [url, step, file] = process.argv.slice(2);
const client = connect(url);
if (step === "take") {
  const lock = await client.lock("handed", { detachable: true });
  const data = await lock.detach();
  assert(!lock.isValid() && !lock.signal.aborted);
  assert.throws(() => lock.check(), LockLost);
  await assert.rejects(lock.release(), /detached/);
  await lock[Symbol.asyncDispose]();
  const other = await client.lock("kept");
  await assert.rejects(other.detach(), /detachable/);
  assert(other.isValid());
  await other.release();
  writeFileSync(file, JSON.stringify(data));
} else {
  const data = JSON.parse(readFileSync(file));
  await assert.rejects(client.tryLock(data.name), LockHeld);
  const lock = await client.attach(data);
  assert.equal(lock.token, data.token);
  assert(lock.validForMs() > 20_000 && lock.validForMs() <= 30_000);
  assert.equal(await lock.release(), "released");
  for (const bad of [{}, { ...data, key: "x".repeat(43) }]) {
    await assert.rejects(client.attach(bad), (error) => error instanceof TypeError && !String(error).includes(data.key));
  }
  await assert.rejects(client.attach(data), LockLost);
  assert.equal(await (await client.tryLock(data.name)).release(), "released");
}
await client.close();
