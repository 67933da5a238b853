package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// RocketMQ's remoting protocol, as far as a load generator needs it: JSON headers as the Java client
// 4.9.8 writes them, keys in alphabetical order and without spaces. Ref: docs/protocols/remoting.md.

const (
	codePullMessage       = 11
	codeUpdateTopic       = 17
	codeMaxOffset         = 30
	codeHeartbeat         = 34
	codeSendBack          = 36
	codeEndTransaction    = 37
	codeSendMessageV2     = 310
	codeSendBatchMessage  = 320
	codeSuccess           = 0
	codeUnsupported       = 3
	codePullNotFound      = 19
	codePullAgain         = 20
	rocketVersion         = 409 // of 4.9.8
	rocketHeadBytes       = 8   // total length, serialize type and header length
	rocketMaxFrameBytes   = 16 << 20
	rocketUniqueKeyPrefix = "0A0000051B5918B4AAC2512A" // what a client keeps for all its messages
)

// Fields that change from message to message have a fixed width, so that a frame is laid out once and
// patched where they stand.
const (
	firstOpaque  = 10_000_000
	lastOpaque   = 99_999_999
	opaqueDigits = 8
	uniqueDigits = 8 // hexadecimal, behind rocketUniqueKeyPrefix
	keyDigits    = 10
)

// Positions inside a stored message whose hosts are IPv4 addresses.
const (
	recordQueueOffsetAt = 20
	recordBodyLengthAt  = 84
	recordBodyAt        = 88
	recordMagic         = 0xDAA320A7
)

// extField is one entry of a header's extFields, in the order of its keys.
type extField struct{ name, value string }

// rocketFrame encodes a command with a JSON header.
//
// Layout: length u32 (of what follows) | serialize type u8, 0 | header length u24 | header | body.
func rocketFrame(code int, opaque uint32, fields []extField, body []byte) []byte {
	return appendRocketFrame(nil, code, opaque, 0, fields, body)
}

func appendRocketFrame(dst []byte, code int, opaque uint32, flag int, fields []extField, body []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, rocketHeadBytes)...)
	dst = fmt.Appendf(dst, `{"code":%d,"extFields":{`, code)
	for i, field := range fields {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = fmt.Appendf(dst, `"%s":"`, field.name)
		dst = appendJSONText(dst, field.value)
		dst = append(dst, '"')
	}
	dst = fmt.Appendf(dst, `},"flag":%d,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d}`,
		flag, opaque, rocketVersion)
	headerBytes := len(dst) - start - rocketHeadBytes
	dst = append(dst, body...)
	binary.BigEndian.PutUint32(dst[start:], uint32(4+headerBytes+len(body)))
	binary.BigEndian.PutUint32(dst[start+4:], uint32(headerBytes))
	return dst
}

// appendJSONText appends text that needs no escapes but those of the separators of properties.
func appendJSONText(dst []byte, text string) []byte {
	for i := range len(text) {
		if text[i] < ' ' {
			dst = fmt.Appendf(dst, `\u%04x`, text[i])
		} else {
			dst = append(dst, text[i])
		}
	}
	return dst
}

// messageProperties are what a Java producer sends with every message; numbers are patched later.
func messageProperties(withKeys bool) string {
	properties := "UNIQ_KEY\x01" + rocketUniqueKeyPrefix + "00000000\x02WAIT\x01true\x02TAGS\x01TagA"
	if withKeys {
		properties = "KEYS\x01order-0000000000\x02" + properties
	}
	return properties
}

// sendFields are the short names that a 4.9 producer gives to the header of a send.
func sendFields(topic, properties string, isBatch bool) []extField {
	return []extField{
		{"a", "bench-producer"}, {"b", topic}, {"c", "TBW102"}, {"d", "4"}, {"e", "0"}, {"f", "0"},
		{"g", "1700000000000"}, {"h", "0"}, {"i", properties}, {"j", "0"}, {"k", "false"}, {"l", "0"},
		{"m", strconv.FormatBool(isBatch)}, {"n", "broker-a"},
	}
}

// sendTemplate is one send, of one message or a batch, and where its numbers stand.
type sendTemplate struct {
	frame    []byte
	messages int
	opaqueAt int
	queueAt  int
	uniqueAt []int // one for each message
	keyAt    []int // one for each message, none without keys
}

func newSendTemplate(topic string, bodyBytes, batch int, withKeys bool) sendTemplate {
	body := bytes.Repeat([]byte{'x'}, bodyBytes)
	if batch == 1 {
		return layOutSend(rocketFrame(codeSendMessageV2, firstOpaque, sendFields(topic, messageProperties(withKeys), false), body), 1)
	}
	var records []byte
	for range batch {
		records = appendBatchRecord(records, body, messageProperties(withKeys))
	}
	return layOutSend(rocketFrame(codeSendBatchMessage, firstOpaque, sendFields(topic, "WAIT\x01true", true), records), batch)
}

// layOutSend finds where the numbers of a send stand.
func layOutSend(frame []byte, messages int) sendTemplate {
	template := sendTemplate{frame: frame, messages: messages}
	template.opaqueAt = bytes.Index(template.frame, []byte(`"opaque":`)) + len(`"opaque":`)
	template.queueAt = bytes.Index(template.frame, []byte(`"e":"`)) + len(`"e":"`)
	template.uniqueAt = findAll(template.frame, rocketUniqueKeyPrefix)
	template.keyAt = findAll(template.frame, "order-")
	return template
}

// findAll returns the positions behind every occurrence of text.
func findAll(data []byte, text string) []int {
	var found []int
	for at := 0; ; {
		next := bytes.Index(data[at:], []byte(text))
		if next < 0 {
			return found
		}
		at += next + len(text)
		found = append(found, at)
	}
}

// patch writes the numbers of one send into a copy of the template's frame.
func (t *sendTemplate) patch(frame []byte, opaque uint32, queue int, firstMessage uint64) {
	putDecimal(frame[t.opaqueAt:t.opaqueAt+opaqueDigits], uint64(opaque))
	frame[t.queueAt] = '0' + byte(queue)
	for i, at := range t.uniqueAt {
		putHex(frame[at:at+uniqueDigits], firstMessage+uint64(i))
	}
	for i, at := range t.keyAt {
		putDecimal(frame[at:at+keyDigits], firstMessage+uint64(i))
	}
}

// putDecimal fills dst with the last digits of number.
func putDecimal(dst []byte, number uint64) {
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = '0' + byte(number%10)
		number /= 10
	}
}

func putHex(dst []byte, number uint64) {
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = "0123456789ABCDEF"[number&15]
		number >>= 4
	}
}

// appendBatchRecord appends one message of a batch send.
//
// Layout: size u32 (of the whole) | magic u32, 0 | crc u32, 0 | flag u32 | body u32 + n | properties u16 + p.
func appendBatchRecord(dst, body []byte, properties string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(22+len(body)+len(properties)))
	dst = append(dst, make([]byte, 12)...)
	dst = appendSized(dst, body)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(properties)))
	return append(dst, properties...)
}

// appendStoredMessage appends a message as pulls deliver it, with IPv4 hosts.
func appendStoredMessage(dst []byte, topic, properties string, body []byte) []byte {
	size := recordBodyAt + len(body) + 1 + len(topic) + 2 + len(properties)
	head := make([]byte, recordBodyAt)
	binary.BigEndian.PutUint32(head, uint32(size))
	binary.BigEndian.PutUint32(head[4:], recordMagic)
	binary.BigEndian.PutUint32(head[recordBodyLengthAt:], uint32(len(body)))
	dst = append(dst, head...)
	dst = append(dst, body...)
	dst = append(dst, byte(len(topic)))
	dst = append(dst, topic...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(properties)))
	return append(dst, properties...)
}

// nextRocket returns the next whole frame in the buffer; ok is false when there is none.
// header and body are valid until fill is called.
func (c *frameConn) nextRocket() (header, body []byte, ok bool, err error) {
	header, body, n, err := splitRocket(c.buf[c.start:c.end])
	c.start += n
	return header, body, n > 0, err
}

// splitRocket returns the parts of the frame that data begins with and its length, 0 while it is incomplete.
func splitRocket(data []byte) (header, body []byte, n int, err error) {
	if len(data) < rocketHeadBytes {
		return nil, nil, 0, nil
	}
	total := binary.BigEndian.Uint32(data)
	headerBytes := binary.BigEndian.Uint32(data[4:])
	if total > rocketMaxFrameBytes || headerBytes > total-4 { // a serialize type other than 0 is too long as well
		return nil, nil, 0, fmt.Errorf("frame of %d bytes with a header of %#x", total, headerBytes)
	}
	n = 4 + int(total)
	if len(data) < n {
		return nil, nil, 0, nil
	}
	headerEnd := rocketHeadBytes + int(headerBytes)
	return data[rocketHeadBytes:headerEnd], data[headerEnd:n], n, nil
}

var (
	keyCode       = []byte(`"code":`)
	keyFlag       = []byte(`"flag":`)
	keyOpaque     = []byte(`"opaque":`)
	keyOffset     = []byte(`"queueOffset":"`)
	keyQueue      = []byte(`"queueId":"`)
	keyShortQueue = []byte(`"e":"`)
	keyNextOffset = []byte(`"nextBeginOffset":"`)
	keyMaxOffset  = []byte(`"offset":"`)
)

// headerNumber returns the number behind key. Nothing that is searched here can stand in another field's value.
func headerNumber(header, key []byte) (int64, error) {
	at := bytes.Index(header, key)
	if at < 0 {
		return 0, fmt.Errorf("no %s in %s", key, header)
	}
	digits := header[at+len(key):]
	n := 0
	var number int64
	for n < len(digits) && digits[n] >= '0' && digits[n] <= '9' {
		if number > math.MaxInt64/10-1 {
			return 0, fmt.Errorf("%s is too large in %s", key, header)
		}
		number = 10*number + int64(digits[n]-'0')
		n++
	}
	if n == 0 {
		return 0, fmt.Errorf("no number behind %s in %s", key, header)
	}
	return number, nil
}

// checkSuccess fails unless the answer's code is 0: a benchmark that goes on after a refused command measures the
// wrong thing.
func checkSuccess(header []byte) error {
	code, err := headerNumber(header, keyCode)
	if err != nil {
		return err
	}
	if code != codeSuccess {
		return fmt.Errorf("answer %s", header)
	}
	return nil
}

// requestRocket sends one command and waits for its answer. Only before and after the traffic.
func (c *frameConn) requestRocket(code int, fields []extField, body []byte) ([]byte, error) {
	if _, err := c.Write(rocketFrame(code, firstOpaque, fields, body)); err != nil {
		return nil, err
	}
	header, _, err := c.awaitRocket()
	if err == nil {
		err = checkSuccess(header)
	}
	if err != nil {
		return nil, fmt.Errorf("request %d: %w", code, err)
	}
	return header, nil
}

// awaitRocket reads until there is a frame, which must be an answer.
func (c *frameConn) awaitRocket() (header, body []byte, err error) {
	for {
		header, body, ok, err := c.nextRocket()
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			if err := c.fill(); err != nil {
				return nil, nil, err
			}
			continue
		}
		if isAnswer, err := isRocketAnswer(header); isAnswer || err != nil {
			return header, body, err
		}
	}
}

// isRocketAnswer tells an answer (true) from a notification, which nobody waits for (false).
func isRocketAnswer(header []byte) (bool, error) {
	const answer, oneWay = 1, 2
	flag, err := headerNumber(header, keyFlag)
	if err == nil && flag&(answer|oneWay) == 0 {
		err = fmt.Errorf("the server asks %s", header)
	}
	return flag&answer != 0, err
}

// createTopic makes a topic with so many queues, or leaves it as it is if that is what it has.
func (c *frameConn) createTopic(topic string, queues int) error {
	count := strconv.Itoa(queues)
	_, err := c.requestRocket(codeUpdateTopic, []extField{
		{"defaultTopic", "TBW102"}, {"order", "false"}, {"perm", "6"}, {"readQueueNums", count}, {"topic", topic},
		{"topicFilterType", "SINGLE_TAG"}, {"topicSysFlag", "0"}, {"writeQueueNums", count},
	}, nil)
	return err
}

// maxOffset returns the offset that a queue's next message gets.
func (c *frameConn) maxOffset(topic string, queue int) (int64, error) {
	header, err := c.requestRocket(codeMaxOffset, []extField{{"queueId", strconv.Itoa(queue)}, {"topic", topic}}, nil)
	if err != nil {
		return 0, err
	}
	return headerNumber(header, keyMaxOffset)
}

// openRocket opens count connections.
func openRocket(address string, count int) ([]*frameConn, error) {
	conns := make([]*frameConn, 0, count)
	for i := range count {
		conn, err := dialPlain(address, readBufferBytes)
		if err != nil {
			closeAll(conns)
			return nil, fmt.Errorf("connection %d: %w", i, err)
		}
		conns = append(conns, conn)
	}
	return conns, nil
}

var errQueues = errors.New("-queues must be between 1 and 9")
