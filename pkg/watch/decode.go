// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf16"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// maxNesting bounds Lists inside Lists.
const maxNesting = 8

// reader decodes the objects of files.
type reader struct {
	scheme  *runtime.Scheme
	decoder runtime.Decoder
	convert func(runtime.Object) (object, *ObjectError)
}

// newReader reads what packets are decided by.
func newReader() *reader { return readerOf(newScheme(), convertFile) }

// newNameReader reads what names are made of.
func newNameReader() *reader {
	scheme := newScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Namespace{}, &corev1.Pod{})
	return readerOf(scheme, convertNaming)
}

func readerOf(scheme *runtime.Scheme, convert func(runtime.Object) (object, *ObjectError)) *reader {
	return &reader{scheme: scheme, decoder: newDecoder(scheme), convert: convert}
}

// file is one file while it is read.
type file struct {
	*reader
	name    string
	warn    func(string)
	objects []object
	seen    map[objectKey]bool
}

// read decodes and converts all objects of a file, YAML or JSON, one document or several. Any that is refused refuses the
// whole file. What is only odd, an unknown field or a kind that is not read, is a warning.
func (r *reader) read(name string, data []byte, warn func(string)) ([]object, *ObjectError) {
	f := &file{reader: r, name: name, warn: warn, seen: map[objectKey]bool{}}
	data = utf8Of(data)
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return f.objects, nil
		}
		where := fmt.Sprintf("document %d", n)
		if err != nil {
			return nil, f.refuse(where, err)
		}
		if err := f.document(where, document); err != nil {
			err.File = name
			return nil, err
		}
	}
}

// utf8Of is a file's text without a mark of its byte order. Windows PowerShell writes UTF-16 (kubectl get -o yaml > objects.yaml).
func utf8Of(data []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(data, []byte("\xff\xfe")):
		order = binary.LittleEndian
	case bytes.HasPrefix(data, []byte("\xfe\xff")):
		order = binary.BigEndian
	default:
		return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	}
	units := make([]uint16, 0, len(data)/2)
	for rest := data[2:]; len(rest) >= 2; rest = rest[2:] {
		units = append(units, order.Uint16(rest))
	}
	return []byte(string(utf16.Decode(units)))
}

func (f *file) refuse(where string, err error) *ObjectError {
	return &ObjectError{File: f.name, Object: where, Problem: err.Error()}
}

// document reads one YAML document, or the JSON documents one after the other that stand in its place.
func (f *file) document(where string, text []byte) *ObjectError {
	if values, ok := jsonValues(text); ok {
		for _, value := range values {
			if err := f.value(where, value, schema.GroupVersionKind{}, 0); err != nil {
				return err
			}
		}
		return nil
	}
	value, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		lenient, fatal := yaml.YAMLToJSON(text)
		if fatal != nil {
			return f.refuse(where, fatal)
		}
		value = lenient
		f.warn(f.line(where, err.Error()))
	}
	return f.value(where, value, schema.GroupVersionKind{}, 0)
}

func (f *file) line(parts ...string) string {
	return strings.ReplaceAll(strings.Join(append([]string{f.name}, parts...), ": "), "\n", " ")
}

// jsonValues splits concatenated JSON objects; false if the text is something else.
func jsonValues(text []byte) (values []json.RawMessage, ok bool) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return nil, false
	}
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var value json.RawMessage
		if err := decoder.Decode(&value); errors.Is(err, io.EOF) {
			return values, true
		} else if err != nil {
			return nil, false
		}
		values = append(values, value)
	}
}

// envelope is what tells kinds apart, and what names an object that cannot be decoded.
type envelope struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Items json.RawMessage `json:"items"`
}

// value reads one object, or the objects of a List. The defaults are for items of a typed list (kind ServiceList), which
// need not repeat their kind.
func (f *file) value(where string, text []byte, defaults schema.GroupVersionKind, depth int) *ObjectError {
	if trimmed := bytes.TrimSpace(text); len(trimmed) == 0 || string(trimmed) == "null" {
		return nil
	}
	var head envelope
	if err := json.Unmarshal(text, &head); err != nil {
		return f.undecodable(where, err)
	}
	gvk := schema.FromAPIVersionAndKind(head.APIVersion, head.Kind)
	if gvk.Kind == "" && gvk.Version == "" {
		gvk = defaults
	}
	switch {
	case gvk.Kind == "":
		return &ObjectError{File: f.name, Object: where, Field: "kind", Problem: "required value"}
	case gvk.Version == "":
		return &ObjectError{File: f.name, Object: where, Field: "apiVersion", Problem: "required value"}
	case f.isList(gvk):
		return f.list(where, head.Items, gvk, depth)
	case !f.scheme.Recognizes(gvk):
		f.warn(f.line(fmt.Sprintf("%s, kind %s of %s is skipped: it is not read here", head.title(gvk), gvk.Kind, gvk.GroupVersion())))
		return nil
	}
	return f.object(head.title(gvk), text, gvk)
}

func (e *envelope) title(gvk schema.GroupVersionKind) string {
	return objectKey{kind(gvk.Kind), e.Metadata.Namespace, e.Metadata.Name}.String()
}

// isList knows the kind List and those of the API's answers, ServiceList.
func (f *file) isList(gvk schema.GroupVersionKind) bool {
	item, ok := strings.CutSuffix(gvk.Kind, "List")
	return ok && (item == "" || f.scheme.Recognizes(gvk.GroupVersion().WithKind(item)))
}

func (f *file) list(where string, text json.RawMessage, gvk schema.GroupVersionKind, depth int) *ObjectError {
	if depth == maxNesting {
		return &ObjectError{File: f.name, Object: where, Field: "items", Problem: "too many Lists inside each other"}
	}
	var items []json.RawMessage
	if len(text) > 0 && json.Unmarshal(text, &items) != nil {
		return &ObjectError{File: f.name, Object: where, Field: "items", Problem: "must be a list"}
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	if gvk.Kind == "" {
		gvk = schema.GroupVersionKind{}
	}
	for i, item := range items {
		if err := f.value(fmt.Sprintf("%s, items[%d]", where, i), item, gvk, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// object decodes and converts one object of a kind that is read.
func (f *file) object(title string, text []byte, gvk schema.GroupVersionKind) *ObjectError {
	decoded, _, err := f.decoder.Decode(text, &gvk, nil)
	switch strict, isStrict := runtime.AsStrictDecodingError(err); {
	case isStrict:
		for _, odd := range strict.Errors() {
			f.warn(f.line(title, odd.Error()))
		}
	case err != nil:
		return f.undecodable(title, err)
	}
	setNamespace(decoded)
	o, refusal := f.convert(decoded)
	if refusal != nil {
		refusal.File = f.name
		return refusal
	}
	if f.seen[o.key] {
		return &ObjectError{File: f.name, Object: o.key.String(), Problem: "is defined twice in this file"}
	}
	f.seen[o.key] = true
	f.objects = append(f.objects, o)
	return nil
}

// setNamespace gives an object without one the namespace default, as kubectl does.
func setNamespace(o runtime.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		setDefault(&o.Namespace, metav1.NamespaceDefault)
	case *corev1.Service:
		setDefault(&o.Namespace, metav1.NamespaceDefault)
	case *discoveryv1.EndpointSlice:
		setDefault(&o.Namespace, metav1.NamespaceDefault)
	case *discoveryv1beta1.EndpointSlice:
		setDefault(&o.Namespace, metav1.NamespaceDefault)
	}
}

// wrongType is how encoding/json says that a value does not fit its field.
var wrongType = regexp.MustCompile(`cannot unmarshal (.+) into Go (?:struct field [^. ]*\.([^ ]+)|value) of type ([^ ]+)`)

// undecodable names the field where the decoder says it.
func (f *file) undecodable(title string, err error) *ObjectError {
	out := f.refuse(title, err)
	if m := wrongType.FindStringSubmatch(err.Error()); m != nil {
		out.Field, out.Value, out.Problem = m[2], m[1], "must be "+typeName(m[3])
	}
	return out
}

// typeName says a Go type in the words of YAML.
func typeName(name string) string {
	switch {
	case strings.HasPrefix(name, "int"):
		return "a whole number (" + name + ")"
	case strings.HasPrefix(name, "[]"):
		return "a list"
	case strings.HasPrefix(name, "map["):
		return "a map"
	case name == "bool":
		return "true or false"
	case name == "string":
		return "text"
	case name == "watch.envelope", strings.HasSuffix(name, "Spec"), strings.HasSuffix(name, "Status"):
		return "an object"
	}
	return "of type " + name
}
