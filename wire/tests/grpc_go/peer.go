// Stock grpc-go as the other end: `peer serve` and `peer call ADDRESS`.
//
// The messages are bytes, and the methods those of wireserver.py. The cases are those of gRPC's
// interop tests, whose own programs aren't in Debian's package. `call` prints the name of each case
// that has passed, and ends with 1 at the first one that hasn't.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/golang/protobuf/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const special = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
const messageBytesMax = 32 << 20

// Bytes as they are; messages of the health service by protobuf.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v interface{}) ([]byte, error) {
	if raw, ok := v.(*[]byte); ok {
		return *raw, nil
	}
	return proto.Marshal(v.(proto.Message))
}

func (codec) Unmarshal(data []byte, v interface{}) error {
	if raw, ok := v.(*[]byte); ok {
		*raw = append([]byte(nil), data...)
		return nil
	}
	return proto.Unmarshal(data, v.(proto.Message))
}

// --- the server ---

func answer(_ interface{}, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	switch method {
	case "/test.Wire/Echo", "/test.Wire/EchoStream":
		return each(stream, func(request []byte) error { return stream.SendMsg(&request) })
	case "/test.Wire/TakeAll":
		messages, size := 0, 0
		if err := each(stream, func(request []byte) error {
			messages++
			size += len(request)
			return nil
		}); err != nil {
			return err
		}
		sum := []byte(fmt.Sprintf("%d %d", messages, size))
		return stream.SendMsg(&sum)
	case "/test.Wire/Count":
		return each(stream, func(request []byte) error {
			var number, size int
			fmt.Sscan(string(request), &number, &size)
			for index := 0; index < number; index++ {
				message := append([]byte(fmt.Sprint(index)), make([]byte, size)...)
				if err := stream.SendMsg(&message); err != nil {
					return err
				}
			}
			return nil
		})
	case "/test.Wire/Refuse":
		said, _ := metadata.FromIncomingContext(stream.Context())
		told := metadata.MD{"x-text": said["x-text"], "x-raw-bin": said["x-raw-bin"]}
		stream.SendHeader(told)
		stream.SetTrailer(told)
		return status.Error(codes.NotFound, special)
	case "/test.Wire/Wait":
		<-stream.Context().Done()
		// This answer may come before the caller's own clock has ended the call.
		if stream.Context().Err() == context.DeadlineExceeded {
			return status.Error(codes.DeadlineExceeded, "deadline")
		}
		return status.Error(codes.Canceled, "canceled")
	}
	return status.Error(codes.Unimplemented, method)
}

func each(stream grpc.ServerStream, take func([]byte) error) error {
	for {
		var request []byte
		if err := stream.RecvMsg(&request); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := take(request); err != nil {
			return err
		}
	}
}

func serve() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check("listen", err)
	server := grpc.NewServer(
		grpc.UnknownServiceHandler(answer),
		grpc.MaxRecvMsgSize(messageBytesMax),
		// Connections end again and again, by GOAWAY.
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 300 * time.Millisecond}),
	)
	healthpb.RegisterHealthServer(server, health.NewServer())
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	check("serve", server.Serve(listener))
}

// --- the client ---

var duplex = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

func unary(conn *grpc.ClientConn, method string, request []byte, options ...grpc.CallOption) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var reply []byte
	err := conn.Invoke(ctx, method, &request, &reply, options...)
	return reply, err
}

func open(ctx context.Context, conn *grpc.ClientConn, method string) grpc.ClientStream {
	stream, err := conn.NewStream(ctx, duplex, method)
	check("open "+method, err)
	return stream
}

func send(stream grpc.ClientStream, message []byte) { check("send", stream.SendMsg(&message)) }

func receive(stream grpc.ClientStream) ([]byte, error) {
	var message []byte
	err := stream.RecvMsg(&message)
	return message, err
}

func echo(conn *grpc.ClientConn, size int) {
	body := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
	reply, err := unary(conn, "/test.Wire/Echo", body)
	check("echo", err)
	want(bytes.Equal(reply, body), "echo", size)
}

func manySizes(conn *grpc.ClientConn) {
	for _, size := range []int{0, 1, 5, 16379, 16384, 65535, 65536, 1 << 20, 5 << 20} {
		echo(conn, size)
	}
}

func manyCalls(conn *grpc.ClientConn) {
	var calls sync.WaitGroup
	for i := 0; i < 200; i++ {
		calls.Add(1)
		go func() {
			defer calls.Done()
			echo(conn, 1000)
		}()
	}
	calls.Wait()
}

func pingPong(conn *grpc.ClientConn) {
	stream := open(context.Background(), conn, "/test.Wire/EchoStream")
	for _, size := range []int{27182, 8, 0, 1828, 45904, 300000} {
		send(stream, make([]byte, size))
		reply, err := receive(stream)
		check("ping", err)
		want(len(reply) == size, "pong", len(reply))
	}
	check("close", stream.CloseSend())
	_, err := receive(stream)
	want(err == io.EOF, "end", err)
}

func emptyStream(conn *grpc.ClientConn) {
	stream := open(context.Background(), conn, "/test.Wire/EchoStream")
	check("close", stream.CloseSend())
	_, err := receive(stream)
	want(err == io.EOF, "end", err)
}

func serverStreaming(conn *grpc.ClientConn) {
	stream := open(context.Background(), conn, "/test.Wire/Count")
	send(stream, []byte("5000 1000"))
	check("close", stream.CloseSend())
	for index := 0; index < 5000; index++ {
		reply, err := receive(stream)
		check("receive", err)
		want(len(reply) == 1000+len(fmt.Sprint(index)), "message", index)
	}
	_, err := receive(stream)
	want(err == io.EOF, "end", err)
}

func clientStreaming(conn *grpc.ClientConn) {
	stream := open(context.Background(), conn, "/test.Wire/TakeAll")
	for index := 0; index < 5000; index++ {
		send(stream, make([]byte, 1000))
	}
	check("close", stream.CloseSend())
	reply, err := receive(stream)
	check("receive", err)
	want(string(reply) == "5000 5000000", "sum", string(reply))
}

func statusAndMetadata(conn *grpc.ClientConn) {
	var header, trailer metadata.MD
	raw := string([]byte{0, 255, 10})
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-text", "a b", "x-raw-bin", raw)
	request, reply := []byte{}, []byte{}
	err := conn.Invoke(ctx, "/test.Wire/Refuse", &request, &reply, grpc.Header(&header), grpc.Trailer(&trailer))
	want(status.Code(err) == codes.NotFound && status.Convert(err).Message() == special, "status", err)
	for _, told := range []metadata.MD{header, trailer} {
		want(told["x-text"][0] == "a b" && told["x-raw-bin"][0] == raw, "metadata", told)
	}
}

func deadlineAndCancel(conn *grpc.ClientConn) {
	request, reply := []byte{}, []byte{}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	err := conn.Invoke(ctx, "/test.Wire/Wait", &request, &reply)
	want(status.Code(err) == codes.DeadlineExceeded, "deadline", err)
	ctx, cancel = context.WithCancel(context.Background())
	stream := open(ctx, conn, "/test.Wire/EchoStream")
	send(stream, []byte("first"))
	_, err = receive(stream)
	check("first", err)
	cancel()
	_, err = receive(stream)
	want(status.Code(err) == codes.Canceled, "cancelled", err)
	echo(conn, 10)
}

func refusals(conn *grpc.ClientConn) {
	for _, method := range []string{"/test.Wire/Nothing", "/no.Such/Service"} {
		_, err := unary(conn, method, nil)
		want(status.Code(err) == codes.Unimplemented, method, err)
	}
	_, err := unary(conn, "/test.Wire/Echo", make([]byte, 17<<20))
	want(status.Code(err) == codes.ResourceExhausted, "too large", err)
	_, err = unary(conn, "/test.Wire/Echo", make([]byte, 1000), grpc.UseCompressor(gzip.Name))
	want(status.Code(err) == codes.Unimplemented, "compressed", err)
	echo(conn, 10)
}

func call(address string) {
	conn, err := grpc.Dial(address, grpc.WithInsecure(), grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)))
	check("dial", err)
	for _, each := range []struct {
		name string
		run  func(*grpc.ClientConn)
	}{
		{"many sizes", manySizes}, {"many calls", manyCalls}, {"ping pong", pingPong},
		{"empty stream", emptyStream}, {"server streaming", serverStreaming},
		{"client streaming", clientStreaming}, {"status and metadata", statusAndMetadata},
		{"deadline and cancel", deadlineAndCancel}, {"refusals", refusals},
	} {
		each.run(conn)
		fmt.Println(each.name)
	}
}

// ---

func want(holds bool, what string, got interface{}) {
	if !holds {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, got)
		os.Exit(1)
	}
}

func check(what string, err error) { want(err == nil, what, err) }

func main() {
	encoding.RegisterCodec(codec{})
	if os.Args[1] == "serve" {
		serve()
	} else {
		call(os.Args[2])
	}
}
