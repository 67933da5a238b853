package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"strconv"
	"time"
)

// httpSettings are the flags of nsq-http.
type httpSettings struct {
	address     string
	topic       string
	connections int
	bodyBytes   int
	batch       int
	fresh       bool
	duration    time.Duration
	json        bool
}

func (s *httpSettings) register(flags *flag.FlagSet) {
	flags.StringVar(&s.address, "address", "127.0.0.1:4151", "server's NSQ HTTP address")
	flags.StringVar(&s.topic, "topic", "bench", "topic to publish to")
	flags.IntVar(&s.connections, "connections", 1, "connections, each with one request in flight")
	flags.IntVar(&s.bodyBytes, "body", 100, "body size of a message in bytes")
	flags.IntVar(&s.batch, "batch", 1, "messages per request: 1 sends /pub, more send /mpub")
	flags.BoolVar(&s.fresh, "fresh", false, "a new connection for each request, as clients without a pool have it")
	flags.DurationVar(&s.duration, "duration", 5*time.Second, "how long to publish")
	flags.BoolVar(&s.json, "json", false, "print one JSON object")
}

func (s *httpSettings) validate() error {
	if min(s.connections, s.bodyBytes, s.batch) < 1 {
		return errors.New("-connections, -body and -batch must be at least 1")
	}
	return nil
}

// request lays out what a client sends for one request: the headers that Go's and Python's clients send.
func (s *httpSettings) request() []byte {
	path, body := "/pub", bytes.Repeat([]byte{'x'}, s.bodyBytes)
	if s.batch > 1 {
		path, body = "/mpub", bytes.Repeat(append(body, '\n'), s.batch)
	}
	connection := ""
	if s.fresh {
		connection = "Connection: close\r\n"
	}
	head := fmt.Sprintf("POST %s?topic=%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: loadgen\r\nContent-Length: %d\r\n"+
		"Content-Type: application/octet-stream\r\nAccept-Encoding: gzip\r\n%s\r\n",
		path, s.topic, s.address, len(body), connection)
	return append([]byte(head), body...)
}

// httpPublisher is one connection of nsq-http, or one after the other.
type httpPublisher struct {
	conn      *frameConn
	request   []byte
	address   string
	fresh     bool
	answered  int64
	lastReply time.Time
	latency   histogram
}

// run publishes until the deadline, one request after the other.
func (p *httpPublisher) run(deadline time.Time) error {
	for {
		sentAt := time.Now()
		if !sentAt.Before(deadline) {
			return nil
		}
		if p.fresh {
			p.conn.Close()
			conn, err := net.DialTimeout("tcp", p.address, dialTimeout)
			if err != nil {
				return err
			}
			p.conn.Conn, p.conn.start, p.conn.end = conn, 0, 0
		}
		p.conn.SetReadDeadline(deadline.Add(replyTimeout))
		if _, err := p.conn.Write(p.request); err != nil {
			return err
		}
		if err := p.readReply(); err != nil {
			return err
		}
		p.lastReply = time.Now()
		p.answered++
		p.latency.record(p.lastReply.Sub(sentAt))
	}
}

// readReply reads one answer, which must be 200 OK with a length.
func (p *httpPublisher) readReply() error {
	c := p.conn
	for {
		unread := c.buf[c.start:c.end]
		if head := bytes.Index(unread, []byte("\r\n\r\n")); head >= 0 {
			if !bytes.HasPrefix(unread, []byte("HTTP/1.1 200 ")) {
				return fmt.Errorf("unexpected answer %q", unread)
			}
			length, err := contentLength(unread[:head+2])
			if err != nil {
				return err
			}
			if whole := head + 4 + length; len(unread) >= whole {
				c.start += whole
				return nil
			}
		}
		if err := c.fill(); err != nil {
			return err
		}
	}
}

func contentLength(head []byte) (int, error) {
	name := []byte("\r\ncontent-length: ")
	at := bytes.Index(bytes.ToLower(head), name)
	if at < 0 {
		return 0, fmt.Errorf("an answer without length: %q", head)
	}
	value, _, _ := bytes.Cut(head[at+len(name):], []byte("\r\n"))
	return strconv.Atoi(string(value))
}

func runHTTP(flags *flag.FlagSet, args []string) error {
	var settings httpSettings
	settings.register(flags)
	flags.Parse(args)
	if err := settings.validate(); err != nil {
		return err
	}
	result, err := publishHTTP(settings)
	if err != nil {
		return err
	}
	l := result.LatencyUS
	text := result.rate.String()
	text += fmt.Sprintf("\nlatency us: p50 %.1f, p99 %.1f, p99.9 %.1f, max %.1f", l.P50, l.P99, l.P999, l.Max)
	return report(settings.json, result, text)
}

// publishHTTP runs one load and returns its figures; the clock runs from the first write to the last reply.
func publishHTTP(settings httpSettings) (pubReport, error) {
	conns := make([]*frameConn, settings.connections)
	publishers := make([]*httpPublisher, settings.connections)
	defer func() {
		for _, conn := range conns {
			if conn != nil {
				conn.Close()
			}
		}
	}()
	for i := range conns {
		conn, err := dialPlain(settings.address, 4<<10)
		if err != nil {
			return pubReport{}, err
		}
		conns[i] = conn
		publishers[i] = &httpPublisher{
			conn: conn, request: settings.request(), address: settings.address, fresh: settings.fresh,
		}
	}
	startCPU, start := cpuTime(), time.Now()
	err := runAll(conns, func(i int) error { return publishers[i].run(start.Add(settings.duration)) })
	if err != nil {
		return pubReport{}, err
	}
	cpu, end, latency := cpuTime()-startCPU, start, new(histogram)
	var requests int64
	for _, p := range publishers {
		requests += p.answered
		latency.add(&p.latency)
		if p.lastReply.After(end) {
			end = p.lastReply
		}
	}
	messages := requests * int64(settings.batch)
	return pubReport{
		Tool:        "nsq-http",
		Connections: settings.connections,
		BodyBytes:   settings.bodyBytes,
		Batch:       settings.batch,
		Depth:       1,
		LatencyUS:   newLatencyReport(latency),
		rate:        newRate(messages, messages*int64(settings.bodyBytes), end.Sub(start), cpu),
	}, nil
}
