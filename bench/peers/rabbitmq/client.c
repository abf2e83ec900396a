/* A client for RabbitMQ that is not the bottleneck of a benchmark: it publishes
 * (unless told otherwise), consumes, or looks what is there.
 *
 * Publishing, it keeps at most `window` persistent messages unconfirmed on one channel and
 * measures from the send() that carries a message's first byte to the arrival
 * of the confirm that covers it.
 *
 * What makes it cheap: the frames of a message (method, header, body) are
 * encoded once and laid side by side in a chunk, so the timed path is send() of
 * as many messages as the window has room for, straight from that chunk, and
 * decoding of confirms. librabbitmq opens the connection, declares the queue and
 * decodes what comes back; it keeps no buffer on the way out, so writing to its
 * socket beside it is safe. Heartbeats are off. All memory is touched before
 * the clock starts.
 *
 * Confirms: single or multiple (every tag up to it), in any order; a tag that
 * is confirmed twice or was never sent is an error, as is a confirm that
 * doesn't come for STALL_MS.
 *
 * --exchange and --key publish elsewhere than to the queue itself; --priority, --expiration MS
 * and --header NAME=TEXT are properties of every message.
 *
 * --mode consume takes `count` messages with a prefetch of `window`, checks their
 * size, and acks them a quarter of a window at a time. --mode probe awaits the
 * broker, counts the queue's messages, and gets the first one, which it leaves there.
 *
 * Prints one JSON object on stdout; before that, with --progress MS or in the
 * other modes, events as bench/storage/events.py has them. Exit code 1 and a line on stderr if
 * anything fails; 2 for wrong usage. A nack is counted, not an error.
 */
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum {
  CHANNEL = 1,
  CHUNK_BYTES = 16 * 1024, /* one send() at most, unless a message is larger */
  FRAME_OVERHEAD = 8,       /* type, channel, size, end octet */
  FRAME_MAX = 131072,
  ARGUMENTS_BYTES = 1024, /* room for an encoded method or properties */
  STALL_MS = 60000,
  PROBE_MS = 600000, /* a broker that recovers may take its time */
  PROBE_EVERY_MS = 20,
};

enum mode { PUBLISH, CONSUME, PROBE };

struct options {
  const char *host, *queue, *type;
  const char *exchange, *key, *expiration, *header; /* NULL: none; key: the queue's name */
  int port, priority;                               /* priority < 0: none */
  size_t size;
  uint64_t count, window, progress_ms;
  enum mode mode;
  bool delete_after;
};

/* The wire form of one message, `copies` times in a row. */
struct pattern {
  unsigned char *bytes;
  size_t message_bytes, copies;
};

struct run {
  uint64_t count, window;
  uint64_t started;    /* messages whose first byte has been given to the kernel */
  uint64_t sent_bytes; /* of all messages */
  uint64_t low;        /* lowest index not confirmed yet */
  uint64_t acked, nacked;
  double *sent_at, *latency_s; /* by index; latency_s < 0: not confirmed yet */
};

static void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("rabbitmq client: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static void *must_alloc(size_t bytes) {
  void *memory = malloc(bytes ? bytes : 1);
  if (memory == NULL) die("out of memory (%zu bytes)", bytes);
  memset(memory, 0, bytes); /* page faults belong before the clock starts */
  return memory;
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double cpu_s(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void check_reply(amqp_rpc_reply_t reply, const char *what) {
  if (reply.reply_type == AMQP_RESPONSE_NORMAL) return;
  if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
    die("%s: %s", what, amqp_error_string2(reply.library_error));
  if (reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
    amqp_channel_close_t *close = reply.reply.decoded;
    die("%s: %d %.*s", what, close->reply_code, (int)close->reply_text.len,
        (const char *)close->reply_text.bytes);
  }
  if (reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD) {
    amqp_connection_close_t *close = reply.reply.decoded;
    die("%s: %d %.*s", what, close->reply_code, (int)close->reply_text.len,
        (const char *)close->reply_text.bytes);
  }
  die("%s: unexpected reply 0x%x", what, reply.reply.id);
}

/* ---- events ------------------------------------------------------------ */

static void say_begin(const char *phase, uint64_t total) {
  printf("{\"event\": \"begin\", \"phase\": \"%s\", \"total\": %" PRIu64 ", \"at\": %.6f}\n",
         phase, total, now_s());
  fflush(stdout);
}

static void say_done(const char *event, uint64_t done) {
  printf("{\"event\": \"%s\", \"done\": %" PRIu64 ", \"at\": %.6f}\n", event, done, now_s());
  fflush(stdout);
}

/* Says how far it is, if it is time to; every_ms 0 is never. */
static void say_progress(uint64_t every_ms, uint64_t done) {
  static double said_at;
  if (every_ms == 0 || now_s() - said_at < (double)every_ms * 1e-3) return;
  said_at = now_s();
  say_done("progress", done);
}

/* ---- the connection ---------------------------------------------------- */

static amqp_connection_state_t connect_to(const struct options *options) {
  double deadline = now_s() + (options->mode == PROBE ? PROBE_MS * 1e-3 : 0);
  amqp_connection_state_t connection;
  for (;;) {
    connection = amqp_new_connection();
    amqp_socket_t *socket = connection ? amqp_tcp_socket_new(connection) : NULL;
    if (socket == NULL) die("no memory for a connection");
    int status = amqp_socket_open(socket, options->host, options->port);
    if (status == AMQP_STATUS_OK) break;
    if (now_s() >= deadline)
      die("connect to %s:%d: %s", options->host, options->port, amqp_error_string2(status));
    amqp_destroy_connection(connection);
    nanosleep(&(struct timespec){.tv_nsec = PROBE_EVERY_MS * 1000000L}, NULL);
  }
  check_reply(amqp_login(connection, "/", 0, FRAME_MAX, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest"),
              "login");
  amqp_channel_open(connection, CHANNEL);
  check_reply(amqp_get_rpc_reply(connection), "channel.open");
  return connection;
}

/* Returns how many messages are ready in the queue. */
static uint64_t declare(amqp_connection_state_t connection, const struct options *options) {
  amqp_table_entry_t type = {
      .key = amqp_cstring_bytes("x-queue-type"),
      .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(options->type)}};
  amqp_table_t arguments = {.num_entries = 1, .entries = &type};
  amqp_queue_declare_ok_t *declared = amqp_queue_declare(
      connection, CHANNEL, amqp_cstring_bytes(options->queue), 0, /*durable*/ 1, 0, 0, arguments);
  check_reply(amqp_get_rpc_reply(connection), "queue.declare");
  return declared->message_count;
}

static void select_confirms(amqp_connection_state_t connection) {
  amqp_confirm_select(connection, CHANNEL);
  check_reply(amqp_get_rpc_reply(connection), "confirm.select");
}

/* ---- the frames -------------------------------------------------------- */

static unsigned char *put(unsigned char *at, uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) *at++ = (unsigned char)(value >> shift);
  return at;
}

static unsigned char *put_frame(unsigned char *at, int type, const void *payload, size_t bytes) {
  at = put(at, (uint64_t)type, 1);
  at = put(at, CHANNEL, 2);
  at = put(at, bytes, 4);
  memcpy(at, payload, bytes);
  return put(at + bytes, AMQP_FRAME_END, 1);
}

static unsigned char *put_publish(unsigned char *at, const struct options *options) {
  unsigned char payload[ARGUMENTS_BYTES];
  amqp_basic_publish_t method = {
      .exchange = options->exchange ? amqp_cstring_bytes(options->exchange) : amqp_empty_bytes,
      .routing_key = amqp_cstring_bytes(options->key ? options->key : options->queue)};
  unsigned char *arguments = put(payload, AMQP_BASIC_PUBLISH_METHOD, 4);
  amqp_bytes_t room = {.len = sizeof payload - 4, .bytes = arguments};
  int bytes = amqp_encode_method(AMQP_BASIC_PUBLISH_METHOD, &method, room);
  if (bytes < 0) die("encode basic.publish: %s", amqp_error_string2(bytes));
  return put_frame(at, AMQP_FRAME_METHOD, payload, (size_t)bytes + 4);
}

static unsigned char *put_header(unsigned char *at, const struct options *options) {
  unsigned char payload[ARGUMENTS_BYTES];
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG,
                                        .delivery_mode = AMQP_DELIVERY_PERSISTENT};
  amqp_table_entry_t header;
  char name[ARGUMENTS_BYTES / 2];
  if (options->priority >= 0) {
    properties._flags |= AMQP_BASIC_PRIORITY_FLAG;
    properties.priority = (uint8_t)options->priority;
  }
  if (options->expiration) {
    properties._flags |= AMQP_BASIC_EXPIRATION_FLAG;
    properties.expiration = amqp_cstring_bytes(options->expiration);
  }
  if (options->header) {
    const char *equals = strchr(options->header, '=');
    if (equals == NULL || (size_t)(equals - options->header) >= sizeof name)
      die("--header %s: want NAME=TEXT", options->header);
    snprintf(name, sizeof name, "%.*s", (int)(equals - options->header), options->header);
    header = (amqp_table_entry_t){
        .key = amqp_cstring_bytes(name),
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(equals + 1)}};
    properties._flags |= AMQP_BASIC_HEADERS_FLAG;
    properties.headers = (amqp_table_t){.num_entries = 1, .entries = &header};
  }
  unsigned char *rest = put(payload, AMQP_BASIC_CLASS, 2);
  rest = put(rest, 0, 2);
  rest = put(rest, options->size, 8);
  amqp_bytes_t room = {.len = sizeof payload - 12, .bytes = rest};
  int bytes = amqp_encode_properties(AMQP_BASIC_CLASS, &properties, room);
  if (bytes < 0) die("encode properties: %s", amqp_error_string2(bytes));
  return put_frame(at, AMQP_FRAME_HEADER, payload, (size_t)bytes + 12);
}

static struct pattern encode(const struct options *options, size_t frame_max) {
  size_t part_max = frame_max - FRAME_OVERHEAD;
  unsigned char *body = must_alloc(options->size);
  uint32_t noise = 2463534242u; /* xorshift: a body that nothing can compress */
  for (size_t i = 0; i < options->size; i++) {
    noise ^= noise << 13, noise ^= noise >> 17, noise ^= noise << 5;
    body[i] = (unsigned char)noise;
  }
  size_t parts = (options->size + part_max - 1) / part_max;
  size_t room =
      options->size + parts * FRAME_OVERHEAD + 2 * (size_t)(ARGUMENTS_BYTES + FRAME_OVERHEAD);
  unsigned char *message = must_alloc(room);
  unsigned char *end = put_header(put_publish(message, options), options);
  for (size_t done = 0; done < options->size; done += part_max) {
    size_t left = options->size - done;
    end = put_frame(end, AMQP_FRAME_BODY, body + done, left < part_max ? left : part_max);
  }
  struct pattern pattern = {.message_bytes = (size_t)(end - message)};
  pattern.copies = CHUNK_BYTES / pattern.message_bytes;
  if (pattern.copies == 0) pattern.copies = 1;
  pattern.bytes = must_alloc(pattern.copies * pattern.message_bytes);
  for (size_t i = 0; i < pattern.copies; i++)
    memcpy(pattern.bytes + i * pattern.message_bytes, message, pattern.message_bytes);
  free(message);
  free(body);
  return pattern;
}

/* ---- the timed path ---------------------------------------------------- */

static uint64_t room_bytes(const struct run *run, const struct pattern *pattern) {
  uint64_t last = run->acked + run->nacked + run->window;
  if (last > run->count) last = run->count;
  return last * pattern->message_bytes - run->sent_bytes;
}

static void send_some(struct run *run, const struct pattern *pattern, int fd) {
  size_t chunk = pattern->copies * pattern->message_bytes;
  for (;;) {
    uint64_t room = room_bytes(run, pattern);
    if (room == 0) return;
    size_t offset = run->sent_bytes % pattern->message_bytes;
    size_t bytes = room < chunk - offset ? (size_t)room : chunk - offset;
    double before = now_s();
    ssize_t sent = send(fd, pattern->bytes + offset, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      die("send: %s", strerror(errno));
    }
    run->sent_bytes += (uint64_t)sent;
    uint64_t started = (run->sent_bytes + pattern->message_bytes - 1) / pattern->message_bytes;
    while (run->started < started) run->sent_at[run->started++] = before;
    if ((size_t)sent < bytes) return;
  }
}

static void settle(struct run *run, uint64_t index, double now, bool ack) {
  run->latency_s[index] = now - run->sent_at[index];
  if (ack)
    run->acked++;
  else
    run->nacked++;
}

static void confirm(struct run *run, uint64_t tag, bool multiple, bool ack, double now) {
  /* Tags count from 1; tag 0 with multiple means all so far. */
  uint64_t last = tag == 0 && multiple ? run->started : tag;
  if (last == 0 || last > run->started) die("a confirm for %" PRIu64 ", never sent", tag);
  if (multiple) {
    for (uint64_t i = run->low; i < last; i++)
      if (run->latency_s[i] < 0) settle(run, i, now, ack);
  } else {
    if (run->latency_s[last - 1] >= 0) die("a second confirm for %" PRIu64, tag);
    settle(run, last - 1, now, ack);
  }
  while (run->low < run->started && run->latency_s[run->low] >= 0) run->low++;
}

static void receive_all(struct run *run, amqp_connection_state_t connection) {
  struct timeval at_once = {0, 0};
  amqp_frame_t frame;
  double now = now_s();
  for (;;) {
    int status = amqp_simple_wait_frame_noblock(connection, &frame, &at_once);
    if (status == AMQP_STATUS_TIMEOUT) break;
    if (status != AMQP_STATUS_OK) die("receive: %s", amqp_error_string2(status));
    if (frame.frame_type != AMQP_FRAME_METHOD) die("a frame of type %d", frame.frame_type);
    if (frame.payload.method.id == AMQP_BASIC_ACK_METHOD) {
      amqp_basic_ack_t *ack = frame.payload.method.decoded;
      confirm(run, ack->delivery_tag, ack->multiple, true, now);
    } else if (frame.payload.method.id == AMQP_BASIC_NACK_METHOD) {
      amqp_basic_nack_t *nack = frame.payload.method.decoded;
      confirm(run, nack->delivery_tag, nack->multiple, false, now);
    } else {
      die("the broker sent %s", amqp_method_name(frame.payload.method.id));
    }
  }
  amqp_maybe_release_buffers(connection);
}

static void publish_all(struct run *run, const struct pattern *pattern,
                        amqp_connection_state_t connection, uint64_t progress_ms) {
  struct pollfd poller = {.fd = amqp_get_sockfd(connection)};
  while (run->acked + run->nacked < run->count) {
    send_some(run, pattern, poller.fd);
    poller.events = (short)(room_bytes(run, pattern) ? POLLIN | POLLOUT : POLLIN);
    int ready = poll(&poller, 1, STALL_MS);
    if (ready < 0 && errno != EINTR) die("poll: %s", strerror(errno));
    if (ready == 0) die("nothing confirmed for %d s", STALL_MS / 1000);
    if (ready > 0 && poller.revents & ~POLLOUT) receive_all(run, connection);
    say_progress(progress_ms, run->acked + run->nacked);
  }
}

/* ---- the other modes --------------------------------------------------- */

static void consume_all(const struct options *options, amqp_connection_state_t connection) {
  if (options->window > UINT16_MAX) die("a prefetch above %d", UINT16_MAX);
  uint64_t acks_of = options->window / 4 ? options->window / 4 : 1;
  amqp_basic_qos(connection, CHANNEL, 0, (uint16_t)options->window, 0);
  check_reply(amqp_get_rpc_reply(connection), "basic.qos");
  say_begin("drain", options->count);
  amqp_basic_consume(connection, CHANNEL, amqp_cstring_bytes(options->queue), amqp_empty_bytes, 0,
                     /*no_ack*/ 0, 0, amqp_empty_table);
  check_reply(amqp_get_rpc_reply(connection), "basic.consume");
  struct timeval stall = {.tv_sec = STALL_MS / 1000};
  for (uint64_t done = 0; done < options->count;) {
    amqp_envelope_t envelope;
    amqp_maybe_release_buffers(connection);
    check_reply(amqp_consume_message(connection, &envelope, &stall, 0), "consume");
    if (envelope.message.body.len != options->size)
      die("a message of %zu bytes", envelope.message.body.len);
    uint64_t tag = envelope.delivery_tag;
    amqp_destroy_envelope(&envelope);
    done++;
    if (done % acks_of == 0 || done == options->count) {
      int status = amqp_basic_ack(connection, CHANNEL, tag, /*multiple*/ 1);
      if (status != AMQP_STATUS_OK) die("basic.ack: %s", amqp_error_string2(status));
    }
    say_progress(options->progress_ms, done);
  }
  /* An answer from the queue, which comes after the acks. */
  uint64_t left = declare(connection, options);
  if (left) die("%" PRIu64 " messages are left", left);
  say_done("end", options->count);
}

static void get_first(const struct options *options, amqp_connection_state_t connection) {
  amqp_message_t message;
  check_reply(amqp_basic_get(connection, CHANNEL, amqp_cstring_bytes(options->queue), 0),
              "basic.get");
  check_reply(amqp_read_message(connection, CHANNEL, &message, 0), "the first message");
  if (message.body.len != options->size) die("a message of %zu bytes", message.body.len);
  amqp_destroy_message(&message);
}

static void probe(const struct options *options) {
  say_begin("recover", options->count);
  amqp_connection_state_t connection = connect_to(options);
  uint64_t found = declare(connection, options);
  if (found != options->count) die("%" PRIu64 " messages, not %" PRIu64, found, options->count);
  if (found) get_first(options, connection);
  say_done("end", found);
  amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
  amqp_destroy_connection(connection);
}

/* ---- the report -------------------------------------------------------- */

static int by_value(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

/* The nearest-rank percentile of sorted seconds, in milliseconds. */
static double percentile_ms(const double *sorted, uint64_t count, double percent) {
  if (count == 0) return 0;
  uint64_t rank = (uint64_t)(percent / 100 * (double)count + 0.999999);
  return sorted[rank ? (rank > count ? count : rank) - 1 : 0] * 1e3;
}

static void print_report(const struct options *options, const struct run *run, double seconds,
                         double client_cpu_s) {
  qsort(run->latency_s, run->count, sizeof *run->latency_s, by_value);
  printf("{\"queue\": \"%s\", \"count\": %" PRIu64 ", \"size_bytes\": %zu, \"window\": %" PRIu64
         ", \"seconds\": %.6f, \"rate_per_s\": %.1f, \"acked\": %" PRIu64 ", \"nacked\": %" PRIu64
         ", \"client_cpu_s\": %.6f, \"confirm_ms\": {\"p50\": %.4f, \"p95\": %.4f, \"p99\": %.4f, "
         "\"max\": %.4f}}\n",
         options->queue, run->count, options->size, run->window, seconds,
         seconds > 0 ? (double)run->count / seconds : 0, run->acked, run->nacked, client_cpu_s,
         percentile_ms(run->latency_s, run->count, 50),
         percentile_ms(run->latency_s, run->count, 95),
         percentile_ms(run->latency_s, run->count, 99),
         percentile_ms(run->latency_s, run->count, 100));
}

static uint64_t number(const char *text, const char *name, uint64_t least) {
  char *end;
  errno = 0;
  uint64_t value = strtoull(text, &end, 10);
  if (errno || *end || end == text || value < least || *text == '-') {
    fprintf(stderr, "rabbitmq client: --%s %s: want a number of at least %" PRIu64 "\n", name, text,
            least);
    exit(2);
  }
  return value;
}

static enum mode mode_of(const char *text) {
  if (strcmp(text, "publish") == 0) return PUBLISH;
  if (strcmp(text, "consume") == 0) return CONSUME;
  if (strcmp(text, "probe") == 0) return PROBE;
  fprintf(stderr, "rabbitmq client: --mode %s: want publish, consume or probe\n", text);
  exit(2);
}

static struct options parse(int argc, char **argv) {
  static const struct option known[] = {
      {"host", required_argument, 0, 'h'},   {"port", required_argument, 0, 'p'},
      {"queue", required_argument, 0, 'q'},  {"type", required_argument, 0, 't'},
      {"count", required_argument, 0, 'c'},  {"size", required_argument, 0, 's'},
      {"window", required_argument, 0, 'w'}, {"delete", no_argument, 0, 'd'},
      {"mode", required_argument, 0, 'm'},   {"progress", required_argument, 0, 'i'},
      {"exchange", required_argument, 0, 'e'}, {"key", required_argument, 0, 'k'},
      {"priority", required_argument, 0, 'P'}, {"expiration", required_argument, 0, 'x'},
      {"header", required_argument, 0, 'H'},
      {0, 0, 0, 0}};
  struct options options = {.host = "127.0.0.1", .port = 5672, .queue = "bench", .type = "classic",
                            .count = 10000, .size = 1024, .window = 1000, .priority = -1};
  int flag, index;
  while ((flag = getopt_long(argc, argv, "", known, &index)) != -1) switch (flag) {
      case 'h': options.host = optarg; break;
      case 'p': options.port = (int)number(optarg, "port", 1); break;
      case 'q': options.queue = optarg; break;
      case 't': options.type = optarg; break;
      case 'c': options.count = number(optarg, "count", 0); break;
      case 's': options.size = number(optarg, "size", 0); break;
      case 'w': options.window = number(optarg, "window", 1); break;
      case 'd': options.delete_after = true; break;
      case 'm': options.mode = mode_of(optarg); break;
      case 'i': options.progress_ms = number(optarg, "progress", 0); break;
      case 'e': options.exchange = optarg; break;
      case 'k': options.key = optarg; break;
      case 'P': options.priority = (int)number(optarg, "priority", 0); break;
      case 'x': options.expiration = optarg; break;
      case 'H': options.header = optarg; break;
      default:
        fputs("usage: client [--host A] [--port P] [--queue Q] [--type classic|quorum] [--count N]\n"
              "              [--size BYTES] [--window W] [--delete] [--progress MS]\n"
              "              [--mode publish|consume|probe] [--exchange E] [--key K]\n"
              "              [--priority 0..255] [--expiration MS] [--header NAME=TEXT]\n", stderr);
        exit(2);
    }
  return options;
}

static void publish(const struct options *options, amqp_connection_state_t connection) {
  select_confirms(connection);
  struct pattern pattern = encode(options, (size_t)amqp_get_frame_max(connection));
  struct run run = {.count = options->count, .window = options->window};
  run.sent_at = must_alloc(run.count * sizeof *run.sent_at);
  run.latency_s = must_alloc(run.count * sizeof *run.latency_s);
  for (uint64_t i = 0; i < run.count; i++) run.latency_s[i] = -1;

  if (options->progress_ms) say_begin("fill", run.count);
  double cpu_before = cpu_s(), before = now_s();
  publish_all(&run, &pattern, connection, options->progress_ms);
  double seconds = now_s() - before, client_cpu_s = cpu_s() - cpu_before;
  if (options->progress_ms) say_done("end", run.count);

  if (options->delete_after) {
    amqp_queue_delete(connection, CHANNEL, amqp_cstring_bytes(options->queue), 0, 0);
    check_reply(amqp_get_rpc_reply(connection), "queue.delete");
  }
  print_report(options, &run, seconds, client_cpu_s);
  free(run.sent_at);
  free(run.latency_s);
  free(pattern.bytes);
}

int main(int argc, char **argv) {
  struct options options = parse(argc, argv);
  if (strlen(options.queue) > 200) die("the queue's name is too long");
  if (options.mode == PROBE) {
    probe(&options);
    return 0;
  }
  amqp_connection_state_t connection = connect_to(&options);
  if (options.key == NULL) declare(connection, &options); /* else whoever set the exchange up has */
  if (options.mode == CONSUME)
    consume_all(&options, connection);
  else
    publish(&options, connection);
  amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
  amqp_destroy_connection(connection);
  return 0;
}
