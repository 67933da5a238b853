package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"time"
)

const rocketConsumerGroup = "bench-consumer"

// maxRetries is how often in a row a pull is sent again: a RocketMQ broker answers so now and then, and its clients do.
const maxRetries = 100

// rocketPullSettings are the flags of rocket-pull.
type rocketPullSettings struct {
	address     string
	topic       string
	queues      int
	connections int
	most        int
	sql         string
	duration    time.Duration
	json        bool
}

func (s *rocketPullSettings) register(flags *flag.FlagSet) {
	flags.StringVar(&s.address, "address", "127.0.0.1:10911", "broker's address")
	flags.StringVar(&s.topic, "topic", "bench", "topic to pull from")
	flags.IntVar(&s.queues, "queues", 4, "queues of the topic; each has one pull in flight")
	flags.IntVar(&s.connections, "connections", 1, "connections; each reads every queue from its start")
	flags.IntVar(&s.most, "batch", 32, "messages asked for by one pull")
	flags.StringVar(&s.sql, "sql", "", "SQL92 filter to pull with; it must let every message through")
	flags.DurationVar(&s.duration, "duration", 5*time.Second, "stop after this time, if the queues have not ended before")
	flags.BoolVar(&s.json, "json", false, "print one JSON object")
}

func (s *rocketPullSettings) validate() error {
	if min(s.connections, s.most) < 1 {
		return errors.New("-connections and -batch must be at least 1")
	}
	if s.queues < 1 || s.queues > 9 {
		return errQueues
	}
	return nil
}

type rocketPullReport struct {
	Tool        string         `json:"tool"`
	Connections int            `json:"connections"`
	Batch       int            `json:"batch"`
	Pulls       int64          `json:"pulls"`
	ToTheEnd    bool           `json:"to_the_end"`
	LatencyUS   *latencyReport `json:"latency_us,omitempty"`
	rate
}

// rocketPuller is one connection of rocket-pull: a consumer of every queue with one pull in flight for each, as
// clients do.
type rocketPuller struct {
	conn      *frameConn
	topic     string
	most      int
	sql       string
	version   string  // of the subscription
	offsets   []int64 // by queue: where its next pull begins
	ends      []int64
	sentAt    []time.Time
	retries   []int  // by queue, in a row
	frames    []byte // pulls of one write
	pulls     int64
	messages  int64
	bodyBytes int64
	latency   histogram
	lastReply time.Time
}

func newRocketPuller(conn *frameConn, topic string, most int, sql string, ends []int64) *rocketPuller {
	return &rocketPuller{
		conn:    conn,
		topic:   topic,
		most:    most,
		sql:     sql,
		version: strconv.FormatInt(time.Now().UnixMilli(), 10),
		offsets: make([]int64, len(ends)),
		ends:    ends,
		sentAt:  make([]time.Time, len(ends)),
		retries: make([]int, len(ends)),
	}
}

// subscription is the type of the consumer's filter and the filter.
func (p *rocketPuller) subscription() (kind, expression string) {
	if p.sql != "" {
		return "SQL92", p.sql
	}
	return "TAG", "*"
}

// subscribe announces the consumer, as a push consumer does before its first pull.
func (p *rocketPuller) subscribe() error {
	kind, expression := p.subscription()
	body := fmt.Appendf(nil, `{"clientID":"127.0.0.1@%s","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",`+
		`"consumeType":"CONSUME_PASSIVELY","groupName":%q,"messageModel":"CLUSTERING","subscriptionDataSet":[{`+
		`"classFilterMode":false,"codeSet":[],"expressionType":%q,"subString":%q,"subVersion":%s,"tagsSet":[],`+
		`"topic":%q}],"unitMode":false}],"producerDataSet":[]}`,
		p.version, rocketConsumerGroup, kind, expression, p.version, p.topic)
	_, err := p.conn.requestRocket(codeHeartbeat, nil, body)
	return err
}

// ask appends the next pull of a queue to the frames of the next write.
func (p *rocketPuller) ask(queue int) {
	const commits, mayWait, subscribes = 1, 2, 4
	offset := strconv.FormatInt(p.offsets[queue], 10)
	flags := commits | mayWait
	if p.offsets[queue] == 0 {
		flags = mayWait
	}
	kind, expression := p.subscription()
	fields := []extField{
		{"commitOffset", offset}, {"consumerGroup", rocketConsumerGroup}, {"expressionType", kind},
		{"maxMsgNums", strconv.Itoa(p.most)}, {"queueId", strconv.Itoa(queue)}, {"queueOffset", offset},
		{"subVersion", p.version},
	}
	if p.sql != "" {
		flags |= subscribes
		fields = append(fields, extField{"subscription", expression})
	}
	fields = append(fields,
		extField{"suspendTimeoutMillis", "15000"}, extField{"sysFlag", strconv.Itoa(flags)}, extField{"topic", p.topic})
	p.frames = appendRocketFrame(p.frames, codePullMessage, uint32(firstOpaque+queue), 0, fields, nil)
}

// run pulls until every queue has ended or the deadline is over, and waits for every answer.
func (p *rocketPuller) run(deadline time.Time) error {
	now := time.Now()
	inFlight := 0
	for queue, end := range p.ends {
		if end > 0 {
			p.ask(queue)
			p.sentAt[queue] = now
			inFlight++
		}
	}
	for inFlight > 0 {
		if len(p.frames) > 0 {
			if _, err := p.conn.Write(p.frames); err != nil {
				return err
			}
			p.frames = p.frames[:0]
		}
		p.conn.SetReadDeadline(time.Now().Add(replyTimeout))
		if err := p.conn.fill(); err != nil {
			return err
		}
		p.lastReply = time.Now()
		ended, err := p.settle(p.lastReply.Before(deadline))
		if err != nil {
			return err
		}
		inFlight -= ended
	}
	return nil
}

// settle takes every whole answer and asks on where goOn allows it; it returns the queues that it left.
func (p *rocketPuller) settle(goOn bool) (ended int, err error) {
	for {
		header, body, ok, err := p.conn.nextRocket()
		if !ok || err != nil {
			return ended, err
		}
		if isAnswer, err := isRocketAnswer(header); err != nil {
			return ended, err
		} else if !isAnswer {
			continue
		}
		queue, err := p.take(header, body)
		if err != nil {
			return ended, err
		}
		if goOn && p.offsets[queue] < p.ends[queue] {
			p.ask(queue)
			p.sentAt[queue] = p.lastReply
		} else {
			ended++
		}
	}
}

// take checks one answer and notes its messages.
func (p *rocketPuller) take(header, body []byte) (queue int, err error) {
	opaque, err := headerNumber(header, keyOpaque)
	if err != nil {
		return 0, err
	}
	queue = int(opaque - firstOpaque)
	if queue < 0 || queue >= len(p.offsets) || p.sentAt[queue].IsZero() {
		return 0, fmt.Errorf("answer to nothing: %s", header)
	}
	code, err := headerNumber(header, keyCode)
	if err == nil && code == codePullAgain && p.retries[queue] < maxRetries {
		p.retries[queue]++
		return queue, nil
	}
	if err := checkSuccess(header); err != nil {
		return 0, err
	}
	p.retries[queue] = 0
	messages, bodyBytes, err := walkMessages(body, p.offsets[queue])
	if err != nil {
		return 0, fmt.Errorf("queue %d: %w", queue, err)
	}
	next, err := headerNumber(header, keyNextOffset)
	if err != nil {
		return 0, err
	}
	if messages == 0 || messages > int64(p.most) || next != p.offsets[queue]+messages {
		return 0, fmt.Errorf("%d messages from offset %d on: %s", messages, p.offsets[queue], header)
	}
	p.latency.record(p.lastReply.Sub(p.sentAt[queue]))
	p.sentAt[queue] = time.Time{}
	p.offsets[queue] = next
	p.pulls++
	p.messages += messages
	p.bodyBytes += bodyBytes
	return queue, nil
}

// walkMessages counts the messages of an answer and their body bytes; their offsets must follow each other from first
// on.
func walkMessages(data []byte, first int64) (messages, bodyBytes int64, err error) {
	for len(data) > 0 {
		if len(data) < recordBodyAt {
			return 0, 0, fmt.Errorf("%d bytes where a message should be", len(data))
		}
		size := binary.BigEndian.Uint32(data)
		length := binary.BigEndian.Uint32(data[recordBodyLengthAt:])
		if size > uint32(len(data)) || length > size || size < recordBodyAt {
			return 0, 0, fmt.Errorf("message of %d bytes with a body of %d where %d bytes are left", size, length, len(data))
		}
		offset := int64(binary.BigEndian.Uint64(data[recordQueueOffsetAt:]))
		if offset != first+messages {
			return 0, 0, fmt.Errorf("offset %d where %d should be", offset, first+messages)
		}
		messages++
		bodyBytes += int64(length)
		data = data[size:]
	}
	return messages, bodyBytes, nil
}

func runRocketPull(flags *flag.FlagSet, args []string) error {
	var settings rocketPullSettings
	settings.register(flags)
	flags.Parse(args)
	if err := settings.validate(); err != nil {
		return err
	}
	result, err := rocketPull(settings)
	if err != nil {
		return err
	}
	l := result.LatencyUS
	text := result.rate.String() + fmt.Sprintf("\n%d pulls, latency us: p50 %.1f, p99 %.1f", result.Pulls, l.P50, l.P99)
	return report(settings.json, result, text)
}

// rocketPull reads a backlog once and returns the figures; the clock runs from the first pull to the last answer.
func rocketPull(settings rocketPullSettings) (rocketPullReport, error) {
	conns, err := openRocket(settings.address, settings.connections)
	if err != nil {
		return rocketPullReport{}, err
	}
	defer closeAll(conns)
	conns[0].SetReadDeadline(time.Now().Add(replyTimeout))
	ends, err := maxOffsets(conns[0], settings.topic, settings.queues)
	if err != nil {
		return rocketPullReport{}, err
	}
	pullers := make([]*rocketPuller, len(conns))
	for i, conn := range conns {
		pullers[i] = newRocketPuller(conn, settings.topic, settings.most, settings.sql, ends)
		conn.SetReadDeadline(time.Now().Add(replyTimeout))
		if err := pullers[i].subscribe(); err != nil {
			return rocketPullReport{}, err
		}
	}
	startCPU, start := cpuTime(), time.Now()
	err = runAll(conns, func(i int) error { return pullers[i].run(start.Add(settings.duration)) })
	if err != nil {
		return rocketPullReport{}, err
	}
	return summariseRocketPull(settings, pullers, start, cpuTime()-startCPU), nil
}

func summariseRocketPull(
	settings rocketPullSettings, pullers []*rocketPuller, start time.Time, cpu time.Duration,
) rocketPullReport {
	result := rocketPullReport{
		Tool: "rocket-pull", Connections: settings.connections, Batch: settings.most, ToTheEnd: true,
	}
	var messages, bodyBytes int64
	end := start
	latency := new(histogram)
	for _, puller := range pullers {
		result.Pulls += puller.pulls
		messages += puller.messages
		bodyBytes += puller.bodyBytes
		latency.add(&puller.latency)
		if puller.lastReply.After(end) {
			end = puller.lastReply
		}
		for queue, offset := range puller.offsets {
			result.ToTheEnd = result.ToTheEnd && offset >= puller.ends[queue]
		}
	}
	result.LatencyUS = newLatencyReport(latency)
	result.rate = newRate(messages, bodyBytes, end.Sub(start), cpu)
	return result
}
