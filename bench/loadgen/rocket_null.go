package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
)

// nullPullMessages bounds an answer to a pull.
const nullPullMessages = 32

// maxNullQueues is how many queues the null server counts.
const maxNullQueues = 16

type rocketNullSettings struct {
	address   string
	bodyBytes int
	backlog   int64
	json      bool
}

func runRocketNull(flags *flag.FlagSet, args []string) error {
	var settings rocketNullSettings
	flags.StringVar(&settings.address, "address", "127.0.0.1:10911", "address to listen on; port 0 takes a free one")
	flags.IntVar(&settings.bodyBytes, "body", 100, "body size of the messages that pulls get")
	flags.Int64Var(&settings.backlog, "backlog", 0, "messages that each queue has at the start")
	flags.BoolVar(&settings.json, "json", false, "print the address as one JSON object")
	flags.Parse(args)
	if settings.bodyBytes < 1 || settings.backlog < 0 {
		return errors.New("-body must be at least 1 and -backlog not negative")
	}
	listener, err := net.Listen("tcp", settings.address)
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	listening := nullListening{"rocket-null", os.Getpid(), address}
	if err := report(settings.json, listening, "listening on "+address); err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		listener.Close()
	}()
	return newRocketNullServer(settings.bodyBytes, settings.backlog).serve(listener)
}

// rocketNullServer answers as a broker does and keeps nothing but one number for each queue, whatever its topic:
// sends raise it, pulls below it get equal messages.
type rocketNullServer struct {
	messages    []byte // of one pull
	recordBytes int
	mu          sync.Mutex
	ends        [maxNullQueues]int64
}

func newRocketNullServer(bodyBytes int, backlog int64) *rocketNullServer {
	server := new(rocketNullServer)
	body := bytes.Repeat([]byte{'x'}, bodyBytes)
	for range nullPullMessages {
		server.messages = appendStoredMessage(server.messages, "bench", messageProperties(false), body)
	}
	server.recordBytes = len(server.messages) / nullPullMessages
	for queue := range server.ends {
		server.ends[queue] = backlog
	}
	return server
}

// serve accepts connections until the listener is closed. A connection's failure is its own.
func (s *rocketNullServer) serve(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			if err := s.handle(&frameConn{Conn: conn, buf: make([]byte, readBufferBytes)}); err != nil {
				fmt.Fprintf(os.Stderr, "loadgen rocket-null: %v\n", err)
			}
		}()
	}
}

// handle serves one connection until the client closes it: the answers to one read are one write.
func (s *rocketNullServer) handle(conn *frameConn) error {
	defer conn.Close()
	var answers []byte
	for {
		if conn.fill() != nil {
			return nil // the client is gone: benchmarks end like this
		}
		answers = answers[:0]
		for {
			header, body, ok, err := conn.nextRocket()
			if err == nil && ok {
				answers, err = s.answer(answers, header, body)
			}
			if err != nil {
				return err
			}
			if !ok {
				break
			}
		}
		if _, err := conn.Write(answers); err != nil {
			return nil
		}
	}
}

// answer appends the answer to one request.
func (s *rocketNullServer) answer(dst, header, body []byte) ([]byte, error) {
	code, err := headerNumber(header, keyCode)
	if err != nil {
		return dst, err
	}
	opaque, err := headerNumber(header, keyOpaque)
	if err != nil {
		return dst, err
	}
	switch code {
	case codeSendMessageV2:
		return s.answerSend(dst, uint32(opaque), header, 1)
	case codeSendBatchMessage:
		return s.answerSend(dst, uint32(opaque), header, countBatch(body))
	case codePullMessage:
		return s.answerPull(dst, uint32(opaque), header)
	case codeMaxOffset:
		queue, err := queueOf(header, keyQueue)
		if err != nil {
			return dst, err
		}
		offset := strconv.FormatInt(s.raise(queue, 0), 10)
		return appendRocketFrame(dst, codeSuccess, uint32(opaque), 1, []extField{{"offset", offset}}, nil), nil
	case codeUpdateTopic, codeHeartbeat, codeSendBack, codeEndTransaction:
		return appendRocketFrame(dst, codeSuccess, uint32(opaque), 1, nil, nil), nil
	}
	return appendRocketFrame(dst, codeUnsupported, uint32(opaque), 1, nil, nil), nil
}

// answerSend counts messages. The answer is written field by field: it is what the ceiling consists of.
func (s *rocketNullServer) answerSend(dst []byte, opaque uint32, header []byte, messages int64) ([]byte, error) {
	queue, err := queueOf(header, keyShortQueue)
	if err != nil {
		return dst, err
	}
	offset := s.raise(queue, messages)
	start := len(dst)
	dst = append(dst, make([]byte, rocketHeadBytes)...)
	dst = append(dst, `{"code":0,"extFields":{"queueId":"`...)
	dst = strconv.AppendInt(dst, int64(queue), 10)
	dst = append(dst, `","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"7F00000100002A9F0000000000000000","queueOffset":"`...)
	dst = strconv.AppendInt(dst, offset, 10)
	dst = append(dst, `"},"flag":1,"language":"JAVA","opaque":`...)
	dst = strconv.AppendInt(dst, int64(opaque), 10)
	dst = append(dst, `,"serializeTypeCurrentRPC":"JSON","version":409}`...)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	binary.BigEndian.PutUint32(dst[start+4:], uint32(len(dst)-start-rocketHeadBytes))
	return dst, nil
}

// answerPull delivers as many messages as the queue has from the offset asked for, but not more than one block.
func (s *rocketNullServer) answerPull(dst []byte, opaque uint32, header []byte) ([]byte, error) {
	queue, err := queueOf(header, keyQueue)
	if err != nil {
		return dst, err
	}
	offset, err := headerNumber(header, keyOffset)
	if err != nil {
		return dst, err
	}
	end := s.raise(queue, 0)
	n := min(end-offset, nullPullMessages)
	code := codeSuccess
	if n <= 0 {
		n, code = 0, codePullNotFound
	}
	fields := []extField{
		{"maxOffset", strconv.FormatInt(end, 10)}, {"minOffset", "0"},
		{"nextBeginOffset", strconv.FormatInt(offset+n, 10)}, {"suggestWhichBrokerId", "0"},
	}
	dst = appendRocketFrame(dst, code, opaque, 1, fields, s.messages[:int(n)*s.recordBytes])
	first := len(dst) - int(n)*s.recordBytes
	for i := range int(n) {
		binary.BigEndian.PutUint64(dst[first+i*s.recordBytes+recordQueueOffsetAt:], uint64(offset+int64(i)))
	}
	return dst, nil
}

// raise adds to a queue's end and returns what it was before.
func (s *rocketNullServer) raise(queue int, messages int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.ends[queue]
	s.ends[queue] += messages
	return end
}

func queueOf(header, key []byte) (int, error) {
	queue, err := headerNumber(header, key)
	if err == nil && queue >= maxNullQueues {
		err = fmt.Errorf("there is no queue %d", queue)
	}
	return int(queue), err
}

// countBatch returns the messages of a batch send's body.
func countBatch(body []byte) int64 {
	var messages int64
	for len(body) >= 4 {
		size := binary.BigEndian.Uint32(body)
		if size < 4 || size > uint32(len(body)) {
			break
		}
		body = body[size:]
		messages++
	}
	return messages
}
