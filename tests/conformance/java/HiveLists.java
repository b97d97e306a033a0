import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.util.Arrays;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.apache.hadoop.hive.common.ValidCleanerWriteIdList;
import org.apache.hadoop.hive.common.ValidCompactorWriteIdList;
import org.apache.hadoop.hive.common.ValidReaderWriteIdList;
import org.apache.hadoop.hive.common.ValidTxnWriteIdList;
import org.apache.hadoop.hive.common.ValidWriteIdList;
import org.apache.hive.common.util.TxnIdUtils;

import static java.nio.charset.StandardCharsets.UTF_8;

/** Answers questions about write-id lists by Hive's own classes: a line of encoded parts in, one out. "!" is an exception. */
class HiveLists {
    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        var out = new PrintStream(System.out, false, UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] asked = Arrays.stream(line.split("\t", -1)).map(part -> URLDecoder.decode(part, UTF_8)).toArray(String[]::new);
            out.println(URLEncoder.encode(orThrown(() -> answer(asked)), UTF_8));
        }
        out.flush();
    }

    private static String answer(String[] asked) {
        return switch (asked[0]) {
            case "pair" -> pair(new ValidReaderWriteIdList(asked[1]), new ValidReaderWriteIdList(asked[2]));
            case "txn" -> transaction(new ValidTxnWriteIdList(asked[1]), asked);
            case "reader" -> list(new ValidReaderWriteIdList(asked[1]), asked);
            case "compactor" -> list(new ValidCompactorWriteIdList(asked[1]), asked);
            default -> list(new ValidCleanerWriteIdList(new ValidReaderWriteIdList(asked[1])), asked);
        };
    }

    private static String pair(ValidWriteIdList a, ValidWriteIdList b) {
        return TxnIdUtils.compare(a, b) + " " + TxnIdUtils.checkEquivalentWriteIds(a, b);
    }

    private static String transaction(ValidTxnWriteIdList lists, String[] asked) {
        return lists.isEmpty() + " " + lists + " " + lists.getTableValidWriteIdList(asked[2]);
    }

    /** The list, its fields, then whether ids and ranges up to asked[2] are valid, aborted and a valid base. */
    private static String list(ValidReaderWriteIdList list, String[] asked) {
        long top = Long.parseLong(asked[2]);
        var ids = LongStream.rangeClosed(0, top).mapToObj(id -> bit(list.isWriteIdValid(id)) + bit(list.isWriteIdAborted(id))
            + bit(list.isValidBase(id))).collect(Collectors.joining(","));
        var ranges = LongStream.rangeClosed(1, top).boxed().flatMap(low -> LongStream.rangeClosed(low, top).mapToObj(high ->
            list.isWriteIdRangeValid(low, high).name().substring(0, 1) + list.isWriteIdRangeAborted(low, high).name().charAt(0)
        )).collect(Collectors.joining(","));
        return list + " " + list.getTableName() + " " + list.getHighWatermark() + " " + list.getMinOpenWriteId() + " "
            + Arrays.toString(list.getInvalidWriteIds()).replace(" ", "") + " " + ids + " " + ranges;
    }

    private static String bit(boolean is) {
        return is ? "1" : "0";
    }

    private static String orThrown(Supplier<String> answer) {
        try {
            return answer.get();
        } catch (RuntimeException e) {
            return "!";
        }
    }
}
