// Produces to a topic of a Headwater broker and reads it back through a group, with nothing but the proto file.
//
//   npm ci --ignore-scripts
//   node main.js 127.0.0.1:6174 orders 100
//
// HEADWATER_CLIENT_TOKEN is sent with each call, HEADWATER_CLIENT_TLS_CA is the authority of the broker's certificate.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const PROTO = fileURLToPath(new URL("../../proto/headwater/v1/broker.proto", import.meta.url));
const GROUP = "node-example";
const BATCH = 50;
const WAIT_MS = 1000;

/** The methods of the broker, each as a function from a request to a promise of its answer. */
function connect(address) {
  // Offsets are 64 bits wide, more than a number of JavaScript holds exactly: they come as text.
  const definition = protoLoader.loadSync(PROTO, { keepCase: true, longs: String, defaults: true });
  const { Broker } = grpc.loadPackageDefinition(definition).headwater.v1;
  const { HEADWATER_CLIENT_TOKEN: token, HEADWATER_CLIENT_TLS_CA: authority } = process.env;
  const secure = authority && grpc.credentials.createSsl(readFileSync(authority));
  const client = new Broker(address, secure || grpc.credentials.createInsecure());
  const metadata = new grpc.Metadata();
  if (token) metadata.set("authorization", `Bearer ${token}`);
  const call = (method) => {
    const send = promisify(client[method].bind(client));
    return (request) => send(request, metadata);
  };
  return { call, close: () => client.close() };
}

/** Sends so many records, in batches. A batch is answered when it is as durable as the topic promises. */
async function produce(broker, topic, count) {
  const send = broker.call("Produce");
  for (let first = 0; first < count; first += BATCH) {
    const numbers = Array.from({ length: Math.min(BATCH, count - first) }, (_, index) => first + index);
    const records = numbers.map((number) => ({
      key: Buffer.from(`customer-${number % 7}`),
      value: Buffer.from(JSON.stringify({ number, drink: "tea" })),
      headers: { from: Buffer.from("node") },
    }));
    const { places } = await send({ topic, records });
    console.log(`produced ${places.length}, the first at ${places[0].partition}:${places[0].offset}`);
  }
}

/** Reads so many records as a member of a group, and commits what is done. */
async function consume(broker, topic, count) {
  const join = { group: GROUP, topics: [topic], client: "node" };
  const { member_id } = await broker.call("JoinGroup")(join);
  const poll = broker.call("Poll");
  const commit = broker.call("Commit");
  const sums = new Map();
  let read = 0;
  while (read < count) {
    const { partitions } = await poll({ group: GROUP, member_id, max_records: BATCH, max_wait_ms: WAIT_MS });
    for (const { records } of partitions) {
      for (const { key, value } of records) {
        const customer = key.toString();
        sums.set(customer, (sums.get(customer) ?? 0) + JSON.parse(value).number);
        read += 1;
      }
    }
    // Everything before these offsets is done: after a crash the group goes on from there.
    const positions = partitions.map(({ topic, partition, topic_uuid, next_offset }) => {
      return { topic, partition, topic_uuid, offset: next_offset };
    });
    if (positions.length) await commit({ group: GROUP, member_id, positions });
  }
  await broker.call("LeaveGroup")({ group: GROUP, member_id });
  return { read, sums };
}

const [address = "127.0.0.1:6174", topic = "orders", count = "100"] = process.argv.slice(2);
const broker = connect(address);
try {
  await broker.call("CreateTopic")({ name: topic, partitions: 3, exist_ok: true });
  await produce(broker, topic, Number(count));
  const { read, sums } = await consume(broker, topic, Number(count));
  console.log(`consumed ${read}`);
  for (const customer of [...sums.keys()].sort()) console.log(`${customer}: ${sums.get(customer)}`);
} catch (error) {
  // gRPC's own code and the broker's message; which exception it was is in the metadata, for those who want it.
  console.error(`${grpc.status[error.code] ?? "error"}: ${error.details ?? error.message}`);
  process.exitCode = 1;
} finally {
  broker.close();
}
