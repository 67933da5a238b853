package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// rocketHoldSettings are the flags of rocket-hold.
type rocketHoldSettings struct {
	address   string
	topic     string
	queues    int
	kind      string
	bodyBytes int
	depth     int
	count     int
	json      bool
}

// What rocket-hold can have a broker do with its messages.
const (
	holdDelay  = "delay"  // wait at a delay level
	holdCommit = "commit" // be prepared, and then committed
	holdBack   = "back"   // come back from a consumer that could not process them
)

func (s *rocketHoldSettings) register(flags *flag.FlagSet) {
	flags.StringVar(&s.address, "address", "127.0.0.1:10911", "broker's address")
	flags.StringVar(&s.topic, "topic", "bench", "topic to send to; it is created")
	flags.IntVar(&s.queues, "queues", 4, "queues of the topic, used in turn")
	flags.StringVar(&s.kind, "kind", holdDelay, "delay: messages wait at level 18; commit: half messages, then their commits; back: messages, then each is sent back")
	flags.IntVar(&s.bodyBytes, "body", 100, "body size in bytes")
	flags.IntVar(&s.depth, "depth", 256, "requests in flight")
	flags.IntVar(&s.count, "count", 100_000, "messages")
	flags.BoolVar(&s.json, "json", false, "print one JSON object")
}

func (s *rocketHoldSettings) validate() error {
	if min(s.bodyBytes, s.depth, s.count) < 1 {
		return errors.New("-body, -depth and -count must be at least 1")
	}
	if s.count > lastOpaque-firstOpaque {
		return fmt.Errorf("-count must be at most %d", lastOpaque-firstOpaque)
	}
	if s.queues < 1 || s.queues > 9 {
		return errQueues
	}
	if s.kind != holdDelay && s.kind != holdCommit && s.kind != holdBack {
		return fmt.Errorf("-kind %q is none of %s, %s, %s", s.kind, holdDelay, holdCommit, holdBack)
	}
	return nil
}

type rocketHoldReport struct {
	Tool      string `json:"tool"`
	Kind      string `json:"kind"`
	BodyBytes int    `json:"body_bytes"`
	Depth     int    `json:"depth"`
	rate
}

// storedAt is where a message was stored.
type storedAt struct {
	physical int64
	queue    int64
}

// properties are those of the messages; the unique key of each is patched in.
func (s *rocketHoldSettings) properties() string {
	switch s.kind {
	case holdDelay:
		return messageProperties(false) + "\x02DELAY\x0118"
	case holdCommit:
		return messageProperties(false) + "\x02TRAN_MSG\x01true\x02PGROUP\x01bench-producer"
	}
	return messageProperties(false)
}

// newHoldTemplate lays out the send of one message.
func (s *rocketHoldSettings) newHoldTemplate() sendTemplate {
	fields := sendFields(s.topic, s.properties(), false)
	if s.kind == holdCommit {
		fields[5].value = "4" // the sysFlag of a half message
	}
	return layOutSend(rocketFrame(codeSendMessageV2, firstOpaque, fields, bytes.Repeat([]byte{'x'}, s.bodyBytes)), 1)
}

// follow returns the request that follows a message that was stored, nil where none does.
func (s *rocketHoldSettings) follow() func(dst []byte, opaque uint32, at storedAt) []byte {
	switch s.kind {
	case holdCommit:
		return func(dst []byte, opaque uint32, at storedAt) []byte {
			return appendRocketFrame(dst, codeEndTransaction, opaque, 0, []extField{
				{"commitLogOffset", strconv.FormatInt(at.physical, 10)}, {"commitOrRollback", "8"},
				{"fromTransactionCheck", "false"}, {"msgId", rocketUniqueKeyPrefix + "00000000"},
				{"producerGroup", "bench-producer"}, {"tranStateTableOffset", strconv.FormatInt(at.queue, 10)},
			}, nil)
		}
	case holdBack:
		return func(dst []byte, opaque uint32, at storedAt) []byte {
			return appendRocketFrame(dst, codeSendBack, opaque, 0, []extField{
				{"delayLevel", "0"}, {"group", rocketConsumerGroup}, {"maxReconsumeTimes", "16"},
				{"offset", strconv.FormatInt(at.physical, 10)}, {"originMsgId", rocketUniqueKeyPrefix + "00000000"},
				{"originTopic", s.topic}, {"unitMode", "false"},
			}, nil)
		}
	}
	return nil
}

// pump sends count requests with so many in flight, and takes every answer once.
func (c *frameConn) pump(count, depth int, frame func(dst []byte, i int) []byte, take func(i int, header []byte) error) error {
	answered := make([]bool, count)
	var frames []byte
	for sent, taken := 0, 0; taken < count; {
		if sent < count && sent-taken <= depth-max(1, depth/4) {
			frames = frames[:0]
			for ; sent < count && sent-taken < depth; sent++ {
				frames = frame(frames, sent)
			}
			if _, err := c.Write(frames); err != nil {
				return err
			}
		}
		c.SetReadDeadline(time.Now().Add(replyTimeout))
		header, _, err := c.awaitRocket()
		for err == nil && header != nil {
			if err = checkSuccess(header); err != nil {
				return err
			}
			opaque, err := headerNumber(header, keyOpaque)
			if err != nil {
				return err
			}
			i := int(opaque - firstOpaque)
			if i < 0 || i >= sent || answered[i] {
				return fmt.Errorf("answer to nothing: %s", header)
			}
			answered[i] = true
			taken++
			if err := take(i, header); err != nil {
				return err
			}
			header, err = c.bufferedAnswer()
			if err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bufferedAnswer returns the header of the next answer that was read already, nil if there is none.
func (c *frameConn) bufferedAnswer() ([]byte, error) {
	for {
		header, _, ok, err := c.nextRocket()
		if err != nil || !ok {
			return nil, err
		}
		if isAnswer, err := isRocketAnswer(header); isAnswer || err != nil {
			return header, err
		}
	}
}

// readPlace returns where the answer to a send says that its message is.
func readPlace(header []byte) (storedAt, error) {
	const hostDigits, idDigits = 16, 32
	queue, err := headerNumber(header, keyOffset)
	if err != nil {
		return storedAt{}, err
	}
	_, id, found := strings.Cut(string(header), `"msgId":"`)
	if !found || len(id) < idDigits {
		return storedAt{}, fmt.Errorf("no msgId in %s", header)
	}
	physical, err := strconv.ParseInt(id[hostDigits:idDigits], 16, 64)
	return storedAt{physical, queue}, err
}

func runRocketHold(flags *flag.FlagSet, args []string) error {
	var settings rocketHoldSettings
	settings.register(flags)
	flags.Parse(args)
	if err := settings.validate(); err != nil {
		return err
	}
	result, err := rocketHold(settings)
	if err != nil {
		return err
	}
	return report(settings.json, result, result.rate.String())
}

// rocketHold sends the messages, then what follows them; the clock runs from the first write to the last answer.
func rocketHold(settings rocketHoldSettings) (rocketHoldReport, error) {
	conns, err := openRocket(settings.address, 1)
	if err != nil {
		return rocketHoldReport{}, err
	}
	defer closeAll(conns)
	conn := conns[0]
	if _, err := prepareTopic(conn, settings.topic, settings.queues); err != nil {
		return rocketHoldReport{}, err
	}
	if settings.kind == holdBack {
		// Only a group that is there can send back.
		if err := newRocketPuller(conn, settings.topic, 1, "", nil).subscribe(); err != nil {
			return rocketHoldReport{}, err
		}
	}
	template := settings.newHoldTemplate()
	places := make([]storedAt, settings.count)
	send := func(dst []byte, i int) []byte {
		start := len(dst)
		dst = append(dst, template.frame...)
		template.patch(dst[start:], uint32(firstOpaque+i), i%settings.queues, uint64(i))
		return dst
	}
	note := func(i int, header []byte) (err error) {
		places[i], err = readPlace(header)
		return err
	}
	startCPU, start := cpuTime(), time.Now()
	if err := conn.pump(settings.count, settings.depth, send, note); err != nil {
		return rocketHoldReport{}, err
	}
	if follow := settings.follow(); follow != nil {
		ask := func(dst []byte, i int) []byte { return follow(dst, uint32(firstOpaque+i), places[i]) }
		done := func(int, []byte) error { return nil }
		if err := conn.pump(settings.count, settings.depth, ask, done); err != nil {
			return rocketHoldReport{}, err
		}
	}
	took := time.Since(start)
	messages := int64(settings.count)
	return rocketHoldReport{
		Tool: "rocket-hold", Kind: settings.kind, BodyBytes: settings.bodyBytes, Depth: settings.depth,
		rate: newRate(messages, messages*int64(settings.bodyBytes), took, cpuTime()-startCPU),
	}, nil
}
