import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hive.metastore.HiveMetaStoreClient;
import org.apache.hadoop.hive.metastore.api.Partition;
import org.apache.hadoop.hive.metastore.api.Table;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf;

/** What an engine of Hive does, with Hive's own client: reads a table and its partitions, then changes it. */
public class Engine {
  public static void main(String[] args) throws Exception {
    Configuration conf = MetastoreConf.newMetastoreConf();
    MetastoreConf.setVar(conf, MetastoreConf.ConfVars.THRIFT_URIS, args[0]);
    String db = args[1];
    String table = args[2];
    int rounds = Integer.parseInt(args[3]);
    HiveMetaStoreClient.setProcessorIdentifier("engine@test");
    HiveMetaStoreClient.setProcessorCapabilities(
        new String[] {"EXTREAD", "EXTWRITE", "HIVEBUCKET2", "HIVEFULLACIDREAD", "HIVEFULLACIDWRITE"});
    try (HiveMetaStoreClient client = new HiveMetaStoreClient(conf)) {
      for (int round = 0; round < rounds; round++) {
        long before = System.nanoTime();
        Table found = client.getTable(db, table);
        List<String> names = client.listPartitionNames(db, table, (short) -1);
        List<Partition> all = client.listPartitions(db, table, (short) -1);
        List<Partition> some = client.getPartitionsByNames(db, table, names.subList(0, 1));
        long micros = (System.nanoTime() - before) / 1000;
        System.out.println("read " + found + " " + names + " " + all + " " + some);
        System.out.println("took " + micros);
        found.putToParameters("v", Integer.toString(round));
        if (round % 10 == 9) {
          client.alter_table(db, table, found);
          String seen = client.getTable(db, table).getParameters().get("v");
          System.out.println("wrote " + round + " " + seen);
        }
      }
    }
  }
}
